//! Whole sessions of the command line, with their output and exit codes, in `tests/transcripts/*.txt`.
//!
//! A line `$ command` is run by the shell in a folder of its own; what follows is what it prints, stdout and stderr
//! together, and `[code]` where the exit code is not 0. What differs from run to run is replaced: `<id>`, `<pack>`,
//! `<time>`, `<size>` (of metadata), `<host>`. STDCHK_WRITE_TRANSCRIPTS=1 writes what is printed now.

use std::path::Path;
use std::process::Command;

fn hex_run(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).count()
}

/// Replaces what differs from run to run.
fn redact(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    let mut boundary = true;
    while let Some(first) = rest.chars().next() {
        let run = if boundary { hex_run(rest) } else { 0 };
        if run == 32 || run == 16 {
            out.push_str(if run == 32 { "<pack>" } else { "<id>" });
            rest = &rest[run..];
            continue;
        }
        let time = rest.len() >= 20 && rest.is_char_boundary(20) && {
            let t = rest.as_bytes();
            t[4] == b'-'
                && t[7] == b'-'
                && t[10] == b'T'
                && t[13] == b':'
                && t[19] == b'Z'
                && t[0].is_ascii_digit()
        };
        if time {
            out.push_str("<time>");
            rest = &rest[20..];
            continue;
        }
        boundary = !first.is_ascii_alphanumeric();
        out.push(first);
        rest = &rest[first.len_utf8()..];
    }
    // How well metadata compresses depends on random names in it.
    for before in ["wrote ", "wrote       ", "freed ", "read ", "\"written_bytes\":"] {
        out = without_size(&out, before);
    }
    if out.ends_with("are in use") {
        out = without_size(&out, "");
    }
    let host = stdchk_host();
    out.replace(&format!(" on {host}"), " on <host>").replace(&format!("\"{host}\""), "\"<host>\"")
}

/// Replaces the size that follows `before`, if one does.
fn without_size(line: &str, before: &str) -> String {
    let Some(at) = line.find(before).map(|at| at + before.len()) else { return line.to_owned() };
    let (head, tail) = line.split_at(at);
    let digits = tail.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(tail.len());
    if digits == 0 {
        return line.to_owned();
    }
    let rest = &tail[digits..];
    let unit =
        [" KiB", " MiB", " B"].iter().find(|unit| rest.starts_with(**unit)).map_or(0, |unit| unit.len());
    format!("{head}<size>{}", &rest[unit..])
}

fn stdchk_host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().to_owned()
}

fn run_script(text: &str, dir: &Path) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_stdchk")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    let mut out = String::new();
    for line in text.lines() {
        let Some(command) = line.strip_prefix("$ ") else {
            if line.starts_with('#') || line.is_empty() {
                out.push_str(line);
                out.push('\n');
            }
            continue;
        };
        let script = format!("exec 2>&1\numask 022\n[ ! -f .vars ] || . ./.vars\n{command}");
        let output = Command::new("sh")
            .arg("-c")
            .arg(&script)
            .current_dir(dir)
            .env("PATH", &path)
            .env("STDCHK_STORE", "store")
            .env("COLUMNS", "100")
            .env_remove("STDCHK_LOG")
            .output()
            .expect("sh runs");
        out.push_str(line);
        out.push('\n');
        for printed in String::from_utf8_lossy(&output.stdout).lines() {
            let printed = redact(printed);
            out.push_str(if printed.is_empty() { "." } else { &printed });
            out.push('\n');
        }
        match output.status.code() {
            Some(0) => {}
            code => {
                out.push_str(&format!("[{}]\n", code.map_or("signal".to_owned(), |code| code.to_string())))
            }
        }
    }
    out
}

#[test]
fn sessions_print_what_they_printed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the transcripts are committed") {
        let path = entry.expect("an entry").path();
        let expected = std::fs::read_to_string(&path).expect("a transcript");
        let dir = tempfile::tempdir().expect("a folder");
        let printed = run_script(&expected, dir.path());
        if std::env::var_os("STDCHK_WRITE_TRANSCRIPTS").is_some() {
            std::fs::write(&path, &printed).expect("a file");
            continue;
        }
        for (i, (expected, printed)) in expected.lines().zip(printed.lines()).enumerate() {
            assert_eq!(printed, expected, "{}:{}", path.display(), i + 1);
        }
        assert_eq!(printed.lines().count(), expected.lines().count(), "{}", path.display());
        count += 1;
    }
    assert!(count > 0 || std::env::var_os("STDCHK_WRITE_TRANSCRIPTS").is_some());
}
