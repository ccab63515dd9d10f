# Targets for stacks of target aws, included by the Makefile. RUN, STACK and BASE come from there.
STACK ?= dev
BASE ?= python:3.11-slim-bookworm
FROM ?=
SET ?=
ROWS ?= 0
GB ?= 0
PASSES ?= 1
IDS ?= 0
RATES ?=
AFTER ?=
TO ?= smoke-results
WHO ?= deployer
IAM ?= iam-policies

.PHONY: push state doctor cost plan destroy kept iam-policy aws-smoke

push: venv ## the launcher image to the registry of STACK=dev; BASE= names another base image, FROM= a folder with a Dockerfile upon it
	@$(RUN) -m aws push --stack "$(STACK)" --base "$(BASE)" $(if $(FROM),--from "$(FROM)")

state: venv ## a bucket for Pulumi's state and a key for its secrets, in the account and region of STACK=dev
	@$(RUN) -m aws state --stack "$(STACK)"

doctor: venv ## what stands between STACK=dev and pulumi up; changes nothing
	@$(RUN) -m aws doctor --stack "$(STACK)"

cost: venv ## what STACK=dev costs an hour; SET="nodes.desired=1 network.nat=none" shows a change
	@$(RUN) -m aws cost --stack "$(STACK)" $(foreach change,$(SET),--set "$(change)")

plan: venv ## pods, memory, disk, hours, $ of ROWS=1e9 GB=250 PASSES=3 IDS=50e6 (RATES=my.yaml); AFTER=results: what a run did cost
	@$(RUN) -m aws plan --stack "$(STACK)" $(foreach change,$(SET),--set "$(change)") $(if $(RATES),--rates "$(RATES)") \
	  $(if $(AFTER),--after "$(AFTER)",--rows "$(ROWS)" --gb "$(GB)" --passes "$(PASSES)" --ids "$(IDS)")

destroy: venv ## says what goes and what stays of STACK=dev, asks, and removes it; YES=1 does not ask
	@$(RUN) -m aws destroy --stack "$(STACK)" $(if $(YES),--yes)

kept: venv ## what pulumi destroy left of STACK=dev on purpose, by its tags
	@$(RUN) -m aws kept --stack "$(STACK)"

iam-policy: venv ## IAM documents into IAM=iam-policies, for WHO=deployer or WHO=preview (the pull requests' role)
	@$(RUN) -m aws iam-policy --stack "$(STACK)" --for "$(WHO)" --to "$(IAM)"

aws-smoke: venv ## up, train, results, destroy, residue by tag, in a real account; costs money, so YES=1
	@$(RUN) -m aws smoke --stack "$(STACK)" --base "$(BASE)" --to "$(TO)" $(if $(YES),--yes) $(if $(KEEP),--keep)
