//! Makes the Redis module that tower-redis-cell needs out of the crate `redis-cell`, the way its authors do:
//! `cargo build --release` in its own folder, with the versions of our Cargo.lock.
//!
//! It cannot be a dependency that is linked: as one, cargo would link it with the shared `libstd`, which a
//! redis-server does not find. Where it cannot be built, the variable `REDIS_CELL_PROBLEM` says why, and the
//! benchmark's table says it on.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=Cargo.lock");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    match module(&out) {
        Ok(module) => println!("cargo::rustc-env=REDIS_CELL_MODULE={}", module.display()),
        Err(error) => {
            let line = error.to_string().replace('\n', " ");
            println!("cargo::warning=the Redis module redis-cell was not built: {line}");
            println!("cargo::rustc-env=REDIS_CELL_PROBLEM={line}");
        }
    }
    println!("cargo::rustc-env=RUSTC_VERSION={}", output(Command::new(env::var("RUSTC")?).arg("--version"))?);
    Ok(())
}

fn module(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let source = source_of("redis-cell")?;
    let copy = out.join("redis-cell");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    copy_folder(&source, &copy)?;
    let manifest = copy.join("Cargo.toml");
    // Or cargo takes it for a member of the workspace that it now lies in.
    fs::write(&manifest, fs::read_to_string(&manifest)? + "\n[workspace]\n")?;
    fs::copy("Cargo.lock", copy.join("Cargo.lock"))?;
    let target = out.join("redis-cell-target");
    output(
        Command::new(env::var("CARGO")?)
            .args(["build", "--release", "--offline", "--quiet", "--manifest-path"])
            .arg(&manifest)
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", "--cap-lints=allow")
            .env_remove("CARGO_ENCODED_RUSTFLAGS"),
    )?;
    let module = target.join("release/libredis_cell.so");
    if module.exists() { Ok(module) } else { Err("cargo made no libredis_cell.so".into()) }
}

/// Where cargo keeps the source of a package of ours.
fn source_of(package: &str) -> Result<PathBuf, Box<dyn Error>> {
    let metadata =
        output(Command::new(env::var("CARGO")?).args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|found| found["name"] == package)
        .and_then(|found| Path::new(found["manifest_path"].as_str()?).parent())
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("cargo does not know a package {package}").into())
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    if output.status.success() {
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    } else {
        Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
    }
}
