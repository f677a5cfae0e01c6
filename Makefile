# The commands of the project. `make demo` and `make test` set up all that they need on Debian.

SHELL := /bin/sh
# Tests and measurements leave nothing in the user's own.
export STDCHK_CACHE ?= $(abspath $(or $(CARGO_TARGET_DIR),target))/cache
export PATH := $(if $(CARGO_HOME),$(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
CARGO_FLAGS := --locked

.PHONY: help build demo test test-long bench bench-pool bench-mount fuzz sanitize man

help:
	@echo "make demo       run a simulation, kill it, and go on from its newest checkpoint"
	@echo "make test       run every check and test"
	@echo "make test-long  the same with long runs of what is random"
	@echo "make bench-pool measure pools: throughput over the stripe width, repair, commits (10 minutes)"
	@echo "make bench-mount measure the mount (5 minutes)"
	@echo "make bench      measure against dd, cp, zstd, restic, borg and casync (an hour and a half)"
	@echo "make build      build target/release/stdchk"

build:
	@scripts/setup build
	cargo build $(CARGO_FLAGS) --release --package stdchk-cli

demo:
	@scripts/setup demo
	@cargo build $(CARGO_FLAGS) --quiet --release --package stdchk-cli --example springs
	@PATH="$(CURDIR)/$${CARGO_TARGET_DIR:-target}/release:$$PATH" scripts/demo

test:
	@scripts/setup test
	cargo fmt --all --check
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	cargo xtask layers
	@if command -v cargo-deny >/dev/null; then cargo deny check licenses bans sources; \
	else echo "cargo-deny is not installed: licences and sources of libraries are not checked"; fi
	cargo test $(CARGO_FLAGS) --workspace

test-long:
	@scripts/setup test
	STDCHK_TEST_LONG=1 PROPTEST_CASES=2000 cargo test $(CARGO_FLAGS) --release --workspace

bench-pool: build
	@scripts/setup bench
	cargo run $(CARGO_FLAGS) --quiet --release --package stdchk-bench -- --only pool,commits,stripe,repair,first-byte,questions,tls

bench-mount: build
	cargo run $(CARGO_FLAGS) --quiet --release --package stdchk-bench -- --only mount

bench: build
	@scripts/setup bench
	cargo run $(CARGO_FLAGS) --quiet --release --package stdchk-bench

# Needs cargo-fuzz and a nightly compiler. FUZZ_SECONDS says for how long.
fuzz:
	@command -v cargo-fuzz >/dev/null || { echo "make fuzz: missing: cargo install cargo-fuzz" >&2; exit 1; }
	mkdir -p testing/fuzz/corpus/decoders
	cd testing && cargo +nightly fuzz run --fuzz-dir fuzz decoders fuzz/corpus/decoders fuzz/seeds -- \
		-max_total_time=$(or $(FUZZ_SECONDS),60) -max_len=20000 -rss_limit_mb=1024 -timeout=10

# Islands of unsafe code. Needs a nightly compiler; Miri knows no instructions for vectors, so it runs only what has none.
SANITIZED = -p stdchk-lend -p stdchk-capture -p stdchk-tag -p stdchk-object
sanitize:
	RUSTFLAGS=-Zsanitizer=address cargo +nightly test --lib --tests $(SANITIZED) --target x86_64-unknown-linux-gnu --target-dir target/sanitize
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo "make sanitize: missing: rustup component add --toolchain nightly miri" >&2; exit 1; }
	cargo +nightly miri test -p stdchk-lend --target-dir target/miri

man: build
	$${CARGO_TARGET_DIR:-target}/release/stdchk man man
