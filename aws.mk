# Targets for stacks of target aws, included by the Makefile, which defines RUN.
STACK ?= dev
BASE ?= python:3.11-slim-bookworm
FROM ?=
SET ?=
GB ?= 0
TO ?= smoke-results
WHO ?= deployer
IAM ?= iam-policies

.PHONY: push state doctor cost destroy kept iam-policy aws-smoke

push: venv ## push the launcher image of RUNTIME=fleet|collective (default: that of the stack's values) to the registry of STACK=dev; BASE=image is its base, FROM=folder has a Dockerfile based on it
	@$(RUN) -m aws push --stack "$(STACK)" --base "$(BASE)" $(if $(RUNTIME),--runtime "$(RUNTIME)") $(if $(FROM),--from "$(FROM)")

state: venv ## create a bucket for Pulumi's state and a key for its secrets, in the account and region of STACK=dev
	@$(RUN) -m aws state --stack "$(STACK)"

doctor: venv ## check what would make pulumi up of STACK=dev fail; changes nothing
	@$(RUN) -m aws doctor --stack "$(STACK)"

cost: venv ## show the hourly cost of STACK=dev; SET="nodes.max=6 network.nat=none" shows the effect of a change, GB=250 adds stored data
	@$(RUN) -m aws cost --stack "$(STACK)" --gb "$(GB)" $(foreach change,$(SET),--set "$(change)")

destroy: venv ## list what is removed and kept of STACK=dev, ask, and destroy it; YES=1 does not ask
	@$(RUN) -m aws destroy --stack "$(STACK)" $(if $(YES),--yes)

kept: venv ## list the resources with the tags or names of STACK=dev; after a destroy, those that it kept
	@$(RUN) -m aws kept --stack "$(STACK)"

iam-policy: venv ## write IAM policy documents to IAM=iam-policies, for WHO=deployer or WHO=preview (role that previews pull requests of REPOSITORY=ORG/REPO)
	@$(RUN) -m aws iam-policy --stack "$(STACK)" --for "$(WHO)" --to "$(IAM)" $(if $(REPOSITORY),--repository "$(REPOSITORY)")

aws-smoke: venv ## run up, training, results, destroy and a search for leftovers in a real account; costs money, so YES=1
	@$(RUN) -m aws smoke --stack "$(STACK)" --base "$(BASE)" --to "$(TO)" $(if $(YES),--yes) $(if $(KEEP),--keep)
