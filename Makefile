# `make test` installs Redis if necessary and runs the tests. A change must also pass `make lint`.

.PHONY: test test-faults test-long test-oldest test-servers test-simulation fuzz lint bench bench-peers bench-instructions
SHELL := bash

test:
	@.ci/get-redis
	cargo test --workspace --all-features
	cargo test --no-default-features --lib

# The random tests and the failure tests with many more cases: the stores against each other and against a naive model,
# late refunds, invalid replies, demotions, floods, leases and live policies. Prints the number of cases and their time; about 15
# minutes on two cores. The five variables set the number of cases for `make test` too.
test-long:
	@.ci/get-redis
	REFUND_CASES=$${REFUND_CASES:-20000} HOSTILE_CASES=$${HOSTILE_CASES:-20000} \
	DIFFERENTIAL_STEPS=$${DIFFERENTIAL_STEPS:-300000} LEASES_CASES=$${LEASES_CASES:-400} LIVE_STEPS=$${LIVE_STEPS:-2000} \
	cargo test --release --workspace --all-features --test it -- --nocapture \
		cluster:: concurrency_policy:: differential:: hostile:: leases:: live_policies:: refunds:: store_failure::

# Stops, freezes, starves and restarts servers under load, and prints what the requests saw of it as Markdown; then the
# simulation. About 20 minutes. The figures mean something only on a machine that does nothing else. One part of it:
# `cargo test --release -p tests --all-features --test faults -- table`.
test-faults:
	@.ci/get-redis
	@.ci/get-wrk
	cargo test --quiet -p tests --all-features --test faults -- cold-start
	cargo test --quiet --release -p tests --all-features --test faults
	@$(MAKE) --no-print-directory test-simulation

# Fault schedules in a simulation. Prints the seeds, the steps, the faults by kind and the time; SIMULATION_SEED=7 repeats
# that of one seed.
test-simulation:
	@.ci/get-redis
	SIMULATION_SEEDS=$${SIMULATION_SEEDS:-10000} \
	cargo test --release -p tests --all-features --test it -- simulation:: --nocapture

# `make test` on Redis 6.2, the oldest supported version. Needs python3, a C compiler and make to build it. This build has
# no TLS.
test-oldest:
	@.ci/get-servers redis-6.2
	PATH=$$PWD/target/servers/redis-6.2:$$PATH cargo test --workspace --all-features -- --skip tls

# The integration tests that talk to a server on Redis 6.2, 7.0 and 8.2 and Valkey 8.0, each with RESP2 and RESP3. Prints a
# table. Downloads the servers into target/. About four minutes for each line of the table on two cores.
test-servers:
	@.ci/get-redis
	.ci/test-servers

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-features --lib --bins --examples --benches -- -D warnings
	cargo clippy --workspace --all-features --tests --test faults -- -D warnings -A clippy::unwrap_used -A clippy::print_stderr
	@for features in "" adaptive "adaptive redis" admin axum redis cluster lookup metrics "metrics redis" reload "redis reload" retry "retry tonic" sentinel serde testing \
		tls-rustls tls-rustls-no-provider tonic tonic-tls tracing; do \
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

# Runs each target for three minutes, on nightly. Findings are kept in fuzz/target.
fuzz:
	@command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked
	cd fuzz && for target in forwarding key; do \
		mkdir -p target/found/$$target && \
		cargo +nightly fuzz run $$target target/found/$$target corpus/$$target -- \
			-max_total_time=180 -max_len=12288 || exit 1; \
	done

# Benchmarks the parts of this crate, then compares the crate with its peers, writes benches/peers/results.md and
# results.json, and draws the pictures of docs/performance.md from the latter. Installs wrk if it is missing. Do not run
# anything else on the machine for the twenty minutes that it needs.
bench:
	cargo bench -p benches
	@$(MAKE) --no-print-directory bench-peers

bench-peers:
	@mkdir -p target
	DATA=$$PWD/target/results.json benches/peers/run > target/results.md
	mv target/results.md target/results.json benches/peers/
	benches/peers/draw

# Counts instructions and allocations for a decision with callgrind, and prints each figure beside the recorded one and its
# budget. Fails if one is more than 2 % above the recorded one. Other load hardly changes them. Needs valgrind; about nine
# minutes. CONTENDERS="one two" counts only these, RECORD=yes rewrites benches/instructions/figures.toml.
bench-instructions:
	@.ci/get-redis
	@cargo build --quiet --release -p instructions
	@cargo run --quiet --release -p instructions -- $(if $(filter yes,$(RECORD)),--record) $(CONTENDERS)
