# Targets for stacks of target aws, included by the Makefile. RUN, STACK and BASE come from there.
STACK ?= dev
BASE ?= python:3.11-slim-bookworm
FROM ?=
SET ?=
TO ?= smoke-results

.PHONY: push state doctor cost kept iam-policy aws-smoke

push: venv ## the launcher image to the registry of STACK=dev; BASE= names another base image, FROM= a folder with a Dockerfile upon it
	@$(RUN) -m aws push --stack "$(STACK)" --base "$(BASE)" $(if $(FROM),--from "$(FROM)")

state: venv ## a bucket for Pulumi's state and a key for its secrets, in the account and region of STACK=dev
	@$(RUN) -m aws state --stack "$(STACK)"

doctor: venv ## what stands between STACK=dev and pulumi up; changes nothing
	@$(RUN) -m aws doctor --stack "$(STACK)"

cost: venv ## what STACK=dev costs an hour; SET="nodes.desired=1 network.nat=none" shows a change
	@$(RUN) -m aws cost --stack "$(STACK)" $(foreach change,$(SET),--set "$(change)")

kept: venv ## what pulumi destroy left of STACK=dev on purpose, by its tags
	@$(RUN) -m aws kept --stack "$(STACK)"

iam-policy: venv ## the IAM policy of the person who deploys
	@$(RUN) -m infra.policies deployer

aws-smoke: venv ## up, train, results, destroy, residue by tag, in a real account; costs money, so YES=1
	@$(RUN) -m aws smoke --stack "$(STACK)" --base "$(BASE)" --to "$(TO)" $(if $(YES),--yes) $(if $(KEEP),--keep)
