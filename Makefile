# Every target works on a bare machine: it first makes the Python environment (outside the clone), then what it needs.
PYTHON ?= python3
CONFIG ?=
NODES ?= 3
CLUSTER_KUBECONFIG ?=
CONTEXT ?=
IMAGE ?=

LOCAL = $(PYTHON) local/bootstrap.py
# Looked up when a recipe runs, so that `make help` installs nothing. `path` puts environment and tools first.
RUN = PATH="$$($(LOCAL) path)" PYTHONPATH=. python

.DEFAULT_GOAL := help
.PHONY: help venv tools cluster image sources demo try status down env test test-faults reliability bench lint fmt docs package

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

venv: ## the Python environment, from requirements/dev.lock
	@$(LOCAL) > /dev/null

tools: ## what is missing of Debian packages and Go tools (the first time some ten minutes on two cores)
	@$(LOCAL) tools

cluster: ## a Kubernetes of NODES=1..5 nodes on this machine
	@NODES=$(NODES) $(LOCAL) up

image: ## the launcher image, in every node of the cluster
	@$(LOCAL) image

sources: ## the examples' data into the folder sources/, for the uploads of a stack of target aws
	@$(LOCAL) sources --to sources

demo: ## from nothing to a trained model; CONFIG=quick_start|recommendation|ctr, CLUSTER_KUBECONFIG= CONTEXT= IMAGE=
	@NODES=$(NODES) $(LOCAL) demo --config "$(CONFIG)" --cluster-kubeconfig "$(CLUSTER_KUBECONFIG)" --context "$(CONTEXT)" --image "$(IMAGE)"

try: ## an example trained here and now by three launchers on loopback: no root, no Kubernetes; CONFIG=
	@$(LOCAL) try --config "$(or $(CONFIG),quick_start)"

status: ## what runs, and how far the training is
	@$(LOCAL) status

down: ## stop all of it; data and results stay
	@$(LOCAL) down

env: ## exports for plain pulumi, helm and kubectl: eval "$(make -s env)"
	@$(LOCAL) env

test: tools ## every test but those of test-faults
	@$(RUN) -m tests.run

test-faults: tools ## break runs in every way of docs/reliability.md, stop and start the cluster, and other long tests (some 35 minutes)
	@$(RUN) -m tests.run cluster long faults restarts

reliability: tools ## test-faults, and docs/reliability.md from what it saw
	@FAULT_RESULTS=docs/reliability.json $(RUN) -m tests.run cluster faults
	@$(RUN) docs/reliability.py

bench: tools ## side-by-side measurements
	@$(RUN) -m benchmarks

lint: venv ## ruff and mypy
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

fmt: venv ## format and sort
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

docs: tools ## docs/settings.md and the charts' READMEs from their sources
	@$(RUN) docs/tables.py
	@PATH="$$($(LOCAL) path)" helm-docs --chart-search-root charts --sort-values-order file

package: tools ## the charts as archives in build/, the same bytes for the same charts
	@$(RUN) local/package.py build

# What stacks of target aws need besides pulumi itself.
include aws.mk
