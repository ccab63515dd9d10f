# Every target works on a bare machine: it first creates the Python environment (outside the clone) and what it needs.
PYTHON ?= python3
CONFIG ?=
NODES ?= 3
CLUSTER_KUBECONFIG ?=
CONTEXT ?=
IMAGE ?=
PART ?=
RUNTIME ?=
TEST ?= tests

# exec: make sends SIGTERM to its child, and a shell would end without the command.
LOCAL = exec $(PYTHON) local/bootstrap.py
# Evaluated only in recipes, so that `make help` installs nothing. `path` prints PATH with environment and tools first.
RUN = PATH="$$($(LOCAL) path)" PYTHONPATH=. python

.DEFAULT_GOAL := help
.PHONY: help venv tools cluster image sources demo try status down env check test test-faults reliability bench lint fmt docs

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

venv: ## create the Python environment from requirements/dev.lock
	@$(LOCAL) > /dev/null

tools: ## install missing Debian packages and build missing Go tools (the first time about ten minutes on two cores)
	@$(LOCAL) tools

cluster: ## start a Kubernetes cluster of NODES=1..5 nodes on this machine
	@NODES=$(NODES) $(LOCAL) up

image: ## build the launcher image of RUNTIME=fleet|collective and import it into every node of the cluster
	@$(LOCAL) image --runtime "$(or $(RUNTIME),fleet)"

sources: ## download the examples' data to sources/, from where a stack with target aws uploads it
	@$(LOCAL) sources --to sources

demo: ## set up everything and train an example; CONFIG=quick_start|recommendation|ctr|text, CLUSTER_KUBECONFIG= CONTEXT= IMAGE=
	@NODES=$(NODES) $(LOCAL) demo --config "$(CONFIG)" --cluster-kubeconfig "$(CLUSTER_KUBECONFIG)" --context "$(CONTEXT)" --image "$(IMAGE)"

try: ## train an example with three launchers on loopback, without root and Kubernetes; CONFIG=
	@$(LOCAL) try --config "$(or $(CONFIG),quick_start)"

status: ## show the state of the cluster and of the training
	@$(LOCAL) status

down: ## stop the cluster; data and results stay
	@$(LOCAL) down

env: ## print exports for pulumi, helm and kubectl: eval "$(make -s env)"
	@$(LOCAL) env

check: venv ## lint, types and fast tests in about 50 seconds; one test: make check TEST=tests/test_layering.py
ifeq ($(TEST),tests)
	@$(RUN) -m tests.run --parallel lint fast fast-launcher
else
	@$(RUN) -m pytest $(TEST)
endif

test: tools ## run all tests except those of test-faults
	@$(RUN) -m tests.run

test-faults: tools ## inject every fault of docs/explanation/tested.md, restart the cluster, and run other long tests (at most 55 minutes)
	@$(RUN) -m tests.run cluster long faults restarts

reliability: tools ## inject the faults and write the results to docs/explanation/tested.md
	@FAULT_RESULTS=docs/reliability.json $(RUN) -m tests.run cluster faults
	@$(RUN) docs/reliability.py

bench: tools ## run the benchmarks, or one of them: PART=ctr
	@$(RUN) -m benchmarks $(PART)

lint: venv ## run ruff and mypy
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check . && $(RUN) -m mypy

fmt: venv ## format the sources and sort imports
	@$(RUN) -m ruff check --fix . && $(RUN) -m ruff format .

docs: tools ## generate tables, the charts' READMEs, and the documentation site in build/site
	@$(RUN) docs/tables.py
	@PATH="$$($(LOCAL) path)" helm-docs --chart-search-root charts --chart-to-generate charts/paddle-training,charts/paddle-serving --sort-values-order file
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo "build/site: python3 -m http.server --directory build/site"

# Targets for stacks with target aws.
include aws.mk
