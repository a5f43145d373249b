# `make test` is all a fresh machine needs; `make lint` is what a change must pass besides.

.PHONY: test lint bench
SHELL := bash

test:
	@.ci/get-redis
	cargo test --all-features
	cargo test --no-default-features --lib

lint:
	cargo fmt --check
	cargo clippy --all-features --lib --examples --benches -- -D warnings
	cargo clippy --all-features --tests -- -D warnings -A clippy::unwrap_used -A clippy::print_stderr
	@for features in "" axum redis tracing; do \
		echo "clippy with only the feature '$$features'"; \
		cargo clippy --quiet --lib --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done
	RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps
	.ci/layers
	cargo test --quiet --all-features --test lua_rules
	.ci/msrv
	@command -v cargo-deny >/dev/null || cargo install cargo-deny --locked --debug
	cargo deny --all-features check bans licenses sources
	cargo package --allow-dirty

bench:
	cargo bench --all-features
