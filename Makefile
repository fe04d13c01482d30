.DEFAULT_GOAL := help
SHELL := /bin/bash
GO ?= go

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

build: ## build bin/km0
	$(GO) build -trimpath -o bin/km0 .

run: ## start km0 on its own PostgreSQL (the same as: go run .)
	$(GO) run .

test: ## everything a newcomer needs: set-up, checks and tests with the race detector
	$(GO) test -race -timeout 15m ./...

check: ## formatting, vet, static analysis, tidy go.mod
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "not formatted: run gofmt -w on these files"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

bench: ## the figures of README, each beside its peer
	$(GO) test -run '^$$' -bench Crear -benchtime 20x ./modules/pedidos
	$(GO) test -run '^$$' -bench Relay -benchtime 1x -timeout 30m ./platform/outbox
	$(GO) test -run '^$$' -bench InboxConsumer -benchtime 10000x ./platform/consumer
	$(GO) test -run '^$$' -bench CommitToEffect -benchtime 1x ./app

soak: ## the kill tests, 50 times each
	KM0_TEST_SOAK=50 $(GO) test -v -count 1 -timeout 90m -parallel 3 -run 'Kill' ./app/e2e

demo: ## 500 orders, faults, a killed worker, and the books at the end
	$(GO) run . demo

.PHONY: help build run test check bench soak demo
