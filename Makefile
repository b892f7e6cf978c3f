# make help shows what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Local images are used where they were built; without them the compose file
# takes the public ones.
have = $(shell docker image inspect $(1) >/dev/null 2>&1 && echo $(1))
images = REDIS_IMAGE=$(call have,streamcounter-redis:local) \
	NATS_IMAGE=$(call have,streamcounter-nats:local) \
	PROMETHEUS_IMAGE=$(call have,streamcounter-prometheus:local)
compose = $(images) $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose) -p streamcounter -f deploy/docker-compose.yml

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/streamcounter
	CGO_ENABLED=0 go build -trimpath -o bin/streamcounter ./cmd/streamcounter

.PHONY: test
test: ## Run the tests, then say which did not run and what they need
	go tool -modfile tools/go.mod gotestsum --format standard-quiet ./...

.PHONY: race
race: ## Run the tests with the race detector
	go test -race -timeout 15m ./...

# Each fuzz test in turn, for FUZZTIME each; go test ./... runs their corpora alone.
FUZZTIME ?= 60s
.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME (60s)
	@set -e; for package in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "== $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -parallel 2 $$package; \
		done; \
	done

.PHONY: lint
lint: ## Check formatting, that all compiles on each system, go vet, staticcheck and the linters of .golangci.yml
	@test -z "$$(gofmt -l .)" || { echo "gofmt -w would change:"; gofmt -l .; exit 1; }
	go -C tools run ./typecheck .. windows darwin
	go vet ./...
	go tool -modfile tools/go.mod staticcheck ./...
	go tool -modfile tools/go.mod golangci-lint run

.PHONY: bench
bench: ## Run the benchmarks
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-compare
bench-compare: ## Compare benchmarks with revision OLD, in turns: OLD=main BENCH=Operations IN=./internal/counters ROUNDS=5
	@set -e; old=$$(mktemp -d); trap 'git worktree remove --force "$$old/tree"; rm -rf "$$old"' EXIT; \
	git worktree add -q --detach "$$old/tree" "$(OLD)"; \
	run() { go test -C "$$1" -run '^$$' -bench "$(or $(BENCH),Operations)" -benchtime $(or $(TIME),2000x) $(or $(IN),./internal/counters); }; \
	for round in $$(seq $(or $(ROUNDS),5)); do \
		run "$$old/tree" >>"$$old/old.txt"; run . >>"$$old/new.txt"; \
	done; \
	go -C tools tool benchstat "$$old/old.txt" "$$old/new.txt"

.PHONY: instructions
instructions: ## Count what Redis executes per operation, under valgrind, and compare with the committed figures (UPDATE=1 renews them)
	go -C tools run ./instructions $(if $(UPDATE),-update)

.PHONY: faults
faults: ## Try to break it: SEED=1 MINUTES=10, the real program under faults in the seed's order
	SEED=$(or $(SEED),1) MINUTES=$(or $(MINUTES),10) go test ./internal/faults -count=1 -v -timeout $$(($(or $(MINUTES),10) + 15))m

.PHONY: soak
soak: ## Count KEYS=10000000 keys twice, and see that no process grows
	KEYS=$(or $(KEYS),10000000) go test ./internal/faults -run TestSoak -count=1 -v -timeout 2h

.PHONY: pictures
pictures: ## Take the pictures of docs/pictures with Chromium, from a minute of the shipped log
	STREAMCOUNTER_TEST_PICTURES=$(CURDIR)/docs/pictures go test ./cmd/streamcounter -run TestPictures -count=1

.PHONY: images
images: ## Build all images from this machine, without a registry
	deploy/images.sh

.PHONY: up
up: ## Start Redis, NATS, serve, two workers and Prometheus by compose
	$(compose) up -d
	@echo "checks: http://127.0.0.1:$${HTTP_PORT:-8080}  Prometheus: http://127.0.0.1:$${PROMETHEUS_PORT:-9090}"

.PHONY: down
down: ## Stop them; their volumes stay
	$(compose) down

.PHONY: release
release: ## Build the files of VERSION=0.1.0 into dist: archives, SBOMs, image, chart, checksums
	go -C tools run ./release -version "$(VERSION)"

.PHONY: release-test
release-test: ## Build a release twice, in two places, and compare the files
	go -C tools test -count=1 -vet=off -timeout 25m ./release

.PHONY: chart
chart: ## Test the Helm chart, write deploy/kubernetes.yaml anew, and note for CI which files passed
	go -C deploy/helm/test test -count=1 . -update
	deploy/helm/files.sh >deploy/helm/passed.sha256

# -mod=mod: the module takes its requirements from ours, which change more often than it does.
.PHONY: partners
partners: ## Build and run real partners (Envoy Gateway, Kubernetes, Helm, Traefik, ...): says what it needs; JOBS=2 compilers
	nice go -C tools/partners run -mod=mod ./build -p $(or $(JOBS),0)
	go -C tools/partners test -mod=mod -count=1 -v -timeout 40m .
	go test -count=1 -v ./examples/proxies

.PHONY: ci
ci: ## Run what CI runs
	.ci/run
