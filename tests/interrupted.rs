//! An interrupted run leaves the old file or none, and no temporary file.
#![cfg(unix)]

mod common;

use common::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn spawn(copy: &Copy, words: &[&str]) -> Child {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("oracle"));
    command.arg("run").arg(copy.path()).args(words).arg("-o").arg(copy.out());
    command.env_remove("MEMRA_ORACLE_OUT").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let status =
        Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).stderr(Stdio::null()).status();
    // It may have ended already, which `kill` calls an error.
    status.unwrap();
}

/// Waits until the process catches SIGINT: before that a signal ends it in the system's own way, which leaves no file
/// either, but no exit code.
fn wait_for_the_handler(child: &Child) {
    let status = format!("/proc/{}/status", child.id());
    let catches = || {
        let text = fs::read_to_string(&status).ok()?;
        let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        Some(u64::from_str_radix(mask.trim(), 16).ok()? >> 1 & 1 == 1)
    };
    // Where the system has no such file, a second is enough for any start.
    for _ in 0..1000 {
        match catches() {
            Some(true) => return,
            Some(false) => std::thread::sleep(Duration::from_millis(10)),
            None => return std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

#[test]
fn a_run_that_waits_for_its_tokens_can_be_interrupted() {
    for name in ["INT", "TERM", "KILL"] {
        let copy = Copy::of("llama-plain");
        for old in [false, true] {
            if old {
                fs::write(copy.out(), OLD).unwrap();
            }
            let mut child = spawn(&copy, &["--tokens-file", "-"]);
            child.stdin.as_mut().unwrap().write_all(b"1 2 ").unwrap();
            wait_for_the_handler(&child);
            assert!(child.try_wait().unwrap().is_none(), "it waits");
            signal(&child, name);
            let status = child.wait().unwrap();
            assert_eq!(status.code(), if name == "KILL" { None } else { Some(130) }, "{name}");
            if old { copy.assert_old_file() } else { assert_eq!(copy.left(), [""; 0], "{name}") }
        }
    }
}

#[test]
fn a_run_can_be_interrupted_at_any_time() {
    let copy = Copy::of("mistral-long");
    let tokens: Vec<String> = (0..400).map(|i| (i * 7 % 53).to_string()).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let started = std::time::Instant::now();
    assert!(spawn(&copy, &tokens).wait().unwrap().success());
    let whole = started.elapsed();
    let new = fs::read_to_string(copy.out()).unwrap();
    let mut interrupted = 0;
    for name in ["INT", "TERM", "KILL"] {
        for step in 0..12 {
            fs::write(copy.out(), OLD).unwrap();
            let mut child = spawn(&copy, &tokens);
            std::thread::sleep(whole * step / 11);
            signal(&child, name);
            interrupted += usize::from(!child.wait().unwrap().success());
            let found = fs::read_to_string(copy.out()).unwrap();
            assert!(found == OLD || found == new, "{name}: the old file or the new one, found:\n{found}");
            let mut left = copy.left();
            if name == "KILL" {
                // Nothing can run after it: between the first byte and the rename a temporary file may stay.
                for stray in left.iter().filter(|left| left.starts_with(".oracle-")) {
                    fs::remove_file(copy.out().with_file_name(stray)).unwrap();
                }
                left.retain(|left| !left.starts_with(".oracle-"));
            }
            assert_eq!(left, ["out.tsv"], "{name}");
        }
    }
    assert!(interrupted >= 3, "some runs were interrupted, found {interrupted}");
}

/// An engine as a script that starts another process and waits; `started` gets that process's number.
fn slow_engine(folder: &Path) -> (PathBuf, PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    let (script, started) = (folder.join("engine.sh"), folder.join("started"));
    let text = format!("#!/bin/sh\nsleep 300 &\necho $! > {0}.new\nmv {0}.new {0}\nwait\n", started.display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script, started)
}

/// Waits up to ten seconds for something.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what}");
}

#[test]
fn an_engine_ends_with_everything_it_started() {
    for by_signal in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (script, started) = slow_engine(folder.path());
        let scratch = folder.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("oracle"));
        command.arg("kv-equivalence").arg(fixture("llama-plain")).args(["1", "2", "3", "--engine"]).arg(&script);
        command.env("TMPDIR", &scratch).stdout(Stdio::null()).stderr(Stdio::null());
        if !by_signal {
            command.args(["--timeout", "1"]);
        }
        let mut child = command.spawn().unwrap();
        eventually("the engine starts", || started.exists());
        if by_signal {
            signal(&child, "TERM");
        }
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(if by_signal { 130 } else { 2 }));
        let inner = fs::read_to_string(&started).unwrap();
        let alive =
            || Command::new("kill").args(["-0", inner.trim()]).stderr(Stdio::null()).status().unwrap().success();
        // Where nobody collects orphans a killed process stays listed, as a zombie.
        let state = || fs::read_to_string(format!("/proc/{}/stat", inner.trim())).unwrap_or_default();
        eventually("the engine's own process ends", || !alive() || state().contains(") Z "));
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0, "no scratch folder stays");
    }
}
