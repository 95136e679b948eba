# `make setup` and `make demo` are all that a fresh clone needs, besides a Rust toolchain and pip.

PYTHON ?= python3
CARGO ?= cargo
FUZZ_SECONDS ?= 600

TRELLIQ := target/release/trelliq
MODEL := models/smollm2.gguf
TEXT := models/britannica.txt
FUZZ_TARGETS := packed_reader config gguf

.PHONY: help setup release demo test test-gpu test-serving test-serving-built bench eval-table fmt lint fuzz clean-models

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(MODEL) $(TEXT) ## Fetch the demo's model and text, and the crates
	@$(CARGO) --version >/dev/null 2>&1 || { echo 'no cargo here: install a Rust toolchain first' >&2; exit 1; }
	$(CARGO) fetch --locked

$(MODEL):
	$(PYTHON) tools/fetch.py model $@

$(TEXT):
	$(PYTHON) tools/fetch.py text $@

release:
	$(CARGO) build --release --locked --package trelliq

demo: setup release ## Quantize SmolLM2-135M to 4 bits (its embedding to 8), look at it, measure it, ask it something
	$(TRELLIQ) quantize $(MODEL) models/demo-4bit --bits 4 --embed-bits 8
	$(TRELLIQ) inspect models/demo-4bit
	$(TRELLIQ) eval models/demo-4bit --reference $(MODEL) --text $(TEXT) --windows 4
	$(TRELLIQ) run models/demo-4bit "What is the capital of France?" --max-tokens 80

test: ## Run every test (cargo nextest where it is installed, else cargo test)
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		set -x; $(CARGO) nextest run --locked --workspace --no-fail-fast && $(CARGO) test --locked --workspace --doc --quiet; \
	else \
		set -x; $(CARGO) test --locked --workspace --no-fail-fast; \
	fi

test-gpu: ## Run the tests of the NVIDIA backend; without a GPU each says that it is skipped
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
		set -x; $(CARGO) nextest run --locked --package trelliq-kernels --package trelliq-model -E 'binary(cuda)' --success-output final; \
	else \
		set -x; $(CARGO) test --locked --package trelliq-kernels --package trelliq-model --test cuda -- --nocapture; \
	fi

test-serving: ## Test the server with the openai package and, where Chromium is installed, the page
	$(CARGO) build --locked --package trelliq
	$(MAKE) --no-print-directory test-serving-built

test-serving-built:
	$(PYTHON) tests/serving/run.py --trelliq target/debug/trelliq

bench: $(MODEL) release ## Time encoder, kernels and a 3-bit run on SmolLM2; check the memory that `run` takes
	$(CARGO) bench --locked --package trelliq-codec --package trelliq-kernels
	$(TRELLIQ) quantize $(MODEL) models/bench-3bit --bits 3 --resume off --overwrite
	$(TRELLIQ) bench models/bench-3bit --on-threads 1,2
	$(PYTHON) tools/peak_rss.py 350 $(TRELLIQ) run models/bench-3bit "What is the capital of France?" --max-tokens 64

eval-table: $(MODEL) $(TEXT) release ## Measure the README's table: 2 to 5 bits, rotated and not
	$(PYTHON) tools/eval_table.py $(TRELLIQ) $(MODEL) $(TEXT) models/table

fmt: ## Format the code
	$(CARGO) fmt --all

lint: ## Check format and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

fuzz: ## Fuzz every target for FUZZ_SECONDS each (600)
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	@for target in $(FUZZ_TARGETS); do \
		echo "fuzzing $$target"; \
		RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 || exit 1; \
	done

clean-models: ## Remove what setup, demo and bench put into models/
	rm -rf models
