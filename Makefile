# `make test` installs Redis if necessary and runs the fast tests. A change must also pass `make lint` and `make test-all`.

.PHONY: get-servers test test-all test-alerts test-browser test-clients test-faults test-long test-net test-nightly test-oldest test-programs test-quick test-servers test-simulation test-under-load fuzz lint lint-words bench bench-instructions bench-peers request-path
SHELL := bash
# Gives dependencies the same features in each command of `make lint`, so that they are checked once: see the package's
# manifest.
SHARED := --package tests-features --features tests-features/direct
CRATES := tower-ratelimit tower-ratelimit-operate tower-ratelimit-gateway tower-ratelimit-extra tower-ratelimit-retry
PACKAGES := $(CRATES:%=--package %)
# What `make test` runs: the unit tests, and each program of tests that needs no more than one Redis server.
TESTED = $(PACKAGES) $(patsubst %,--package %,tests tests-operate tests-gateway tests-extra) \
	--lib --test memory --test it --test operate --test gateway --test extra
DOCUMENTED = $(PACKAGES) --package tests
# Of `test-long` and `test-nightly`. Each run has another one, which it prints: `make test-long SEED=7` repeats it.
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

# The crates, their docs, and what needs no more than one Redis server.
test:
	@.ci/get-redis
	@DOCUMENTED="$(DOCUMENTED)" .ci/timed "tests" .ci/cargo-test $(TESTED)

# `make test` with all features and with the rest of the workspace, in one build; and what the published packages contain. The
# rest is TLS, Sentinel, Cluster, gRPC, the programs of this workspace and of the guides, nginx in front of a service, the server
# behind an Envoy, the queries of the dashboard on a Prometheus, and the simulation of faults.
test-all: TESTED = --workspace --all-features --tests
test-all: DOCUMENTED = --workspace --all-features
test-all: get-servers test
	@.ci/timed "packages" .ci/package list

get-servers:
	@.ci/get-redis
	@.ci/get-nginx
	@.ci/get-prometheus
	@.ci/get-envoy

# The tests of contributors without a server: what needs none. Seconds after an edit.
test-quick:
	cargo test --package tower-ratelimit --package tests --lib --test memory

# The rest of `make test-all` in two parts, for machines that work side by side.
test-net:
	@.ci/get-redis
	@DOCUMENTED="$(PACKAGES) --package tests-net --all-features" .ci/timed "all features, net" .ci/cargo-test $(PACKAGES) \
		--package tests-net --all-features --lib --test net

test-programs: get-servers
	@.ci/timed "sim, programs" .ci/cargo-test --workspace \
		$(patsubst %,--exclude %,$(CRATES) tests tests-operate tests-gateway tests-extra tests-net) --all-features --tests
	@.ci/timed "packages" .ci/package list

# The pages of examples in headless Chromium: which headers a script of another origin reads, and the playground. Skips with a
# message if Chromium cannot be installed. Half a minute after the build.
test-browser:
	@.ci/timed "headers in a browser" .ci/browser-cors
	@.ci/timed "playground in a browser" .ci/browser-playground

# The random tests and the failure tests with many more cases: the stores against each other and against a naive model,
# late refunds, invalid replies, demotions, floods, leases and live policies; and, with valgrind, the instructions of Redis for
# foreign values. Prints the number of cases and their time; about 20 minutes on two cores. The variables set the number of
# cases for `make test` too, where a random test has about two seconds.
test-long:
	@.ci/get-redis
	@echo "to repeat this run: make $(MAKECMDGOALS) SEED=$(SEED)"
	PROPTEST_RNG_SEED=$(SEED) REFUND_CASES=$${REFUND_CASES:-20000} HOSTILE_CASES=$${HOSTILE_CASES:-20000} \
	DIFFERENTIAL_STEPS=$${DIFFERENTIAL_STEPS:-300000} LEASES_CASES=$${LEASES_CASES:-400} LIVE_STEPS=$${LIVE_STEPS:-2000} \
	SETTLED_TOKENS=$${SETTLED_TOKENS:-10000} THOROUGH=yes \
	cargo test --release $(patsubst %,--package %,tests tests-operate tests-extra tests-net) \
		--test it --test operate --test extra --test net -- --nocapture \
		cluster:: concurrency_policy:: differential:: each_store:: explanations:: foreign_values:: guarantees:: hostile:: leases:: \
		live_policies:: refunds:: settlement_tokens:: sliding_window:: store_failure:: twin_test:: under_load::
	if command -v valgrind >/dev/null; then \
		FOREIGN_INSTRUCTIONS=yes cargo test --package tests --test it -- --nocapture times_the_instructions; fi

# Stops, freezes, starves and restarts servers under load, and prints what the requests saw of it as Markdown; then the server
# behind an Envoy, and the simulation. About 35 minutes. The figures mean something only on a machine that does nothing else. One
# part of it:
# `cargo test --release -p tests-faults --test faults -- table`.
test-faults:
	@.ci/get-redis
	@.ci/get-wrk
	cargo test --quiet -p tests-faults --test faults -- cold-start
	cargo test --quiet --release -p tests-faults --test faults
	@.ci/get-envoy
	cargo test --quiet --release -p ratelimit-server --test faults
	@$(MAKE) --no-print-directory test-simulation

# Fault schedules in a simulation. Prints the seeds, the steps, the faults by kind and the time; SIMULATION_SEED=7
# repeats the schedule of one seed.
test-simulation:
	@.ci/get-redis
	SIMULATION_SEEDS=$${SIMULATION_SEEDS:-10000} cargo test --release -p tests-sim -- --nocapture

# Runs all tests RUNS times (5) beside BUSY busy processes (one for each processor), and lists those that failed in a run: a
# test that depends on how fast the machine is, or a fault of the crate that shows rarely. BUSY=0 runs them without a load, and
# `.ci/test-under-load --package tests --test it -- leases::` some of them. About ten minutes for each run on two cores.
test-under-load: get-servers
	@.ci/timed "tests under load" .ci/test-under-load --workspace --all-features --tests

# Clients in Python against a limit, as the guide `clients` describes them; and grpcio against the server.
test-clients:
	@.ci/timed "clients" .ci/test-clients

# The random tests of `test-long` and the simulation, with cases that no earlier run had; all tests beside a load; clients in
# Python; the crates with each feature alone; and what is published, built from the packages.
test-nightly: test-long test-under-load test-clients
	ALL=yes .ci/clippy-features
	@.ci/package
	SIMULATION_FIRST=$(SEED) SIMULATION_SEEDS=$${SIMULATION_SEEDS:-10000} RANDOM_ROUTES=$(SEED),20000 \
		cargo test --release -p tests -p tests-sim --test memory --test sim -- --nocapture random_routes:: invariants_hold

# `make test-all` on Redis 6.2, the oldest supported version. Needs python3, a C compiler and make to build it. This build
# has no TLS.
test-oldest:
	@.ci/get-nginx
	@.ci/get-servers redis-6.2
	PATH=$$PWD/target/servers/redis-6.2:$$PATH cargo test --workspace --all-features -- --skip tls

# The tests that talk to a server on Redis 6.2, 7.0 and 8.2 and Valkey 8.0 and 9.1, each with RESP2 and RESP3. Prints a table.
# Downloads the servers into target/. About four minutes for each line of the table on two cores.
test-servers:
	@.ci/get-redis
	.ci/test-servers

# The rules of ops/alerts.yml, with promtool; and the queries of ops/dashboard.json, on a real Prometheus that scrapes a
# service under load and in an outage. Prints the number of series of each query. Skips with a message if Prometheus cannot
# be downloaded.
test-alerts:
	@.ci/get-redis
	@.ci/get-prometheus
	@.ci/test-alerts
	cargo test --quiet -p tests-dashboard -- --nocapture

lint:
	@.ci/timed "format" cargo fmt --all --check
	@.ci/timed "words" .ci/words
	@.ci/timed "figures" .ci/figures
	@# With other options for the lints, clippy would check everything again.
	@.ci/timed "clippy" cargo clippy --workspace --all-features --all-targets -- -D warnings
	@# `--all-targets` leaves out a target with `test = false`, even if it is named beside.
	@.ci/timed "clippy of faults, clients" cargo clippy --workspace --all-features --test faults --test clients --test speed -- \
		-D warnings
	@.ci/timed "clippy of some features" .ci/clippy-features
	@.ci/timed "docs" env RUSTDOCFLAGS="-D warnings" cargo doc --all-features --no-deps $(PACKAGES) $(SHARED)
	@.ci/timed "structure" cargo run --quiet -p structure
	@.ci/timed "alerts" env GET_PROMETHEUS=no .ci/test-alerts
	@.ci/timed "rust-version" .ci/msrv
	@.ci/timed "dependencies" .ci/deny

# Counts the words that this repository does not use, and fails if one occurs more often than .ci/words.txt allows.
lint-words:
	@.ci/words

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
# budget. Fails if one is more than 2 % above the recorded one. Other load hardly changes them. Needs valgrind; about ten
# minutes. CONTENDERS="stored alone" counts only these, RECORD=yes rewrites benches/instructions/figures.toml.
bench-instructions:
	@.ci/get-redis
	@cargo build --quiet --release -p instructions
	@cargo run --quiet --release -p instructions -- $(if $(filter yes,$(RECORD)),--record) $(CONTENDERS)

# Prints the files of src that take part in one request on Redis: those that execute more instructions in a run of more
# requests. Needs valgrind; half a minute.
request-path:
	@.ci/get-redis
	@cargo build --quiet -p instructions
	@cargo run --quiet -p instructions -- --path
