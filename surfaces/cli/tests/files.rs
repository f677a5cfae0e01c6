//! What was written through a mount, read without one.

mod mounts;
mod pools;

use std::process::Output;

use mounts::{Mounted, can_mount, text};

fn run(mounted: &Mounted, args: &[&str]) -> Output {
    mounted.stdchk(&[&["files"], args].concat()).output().expect("it starts")
}

/// What it printed, which must succeed.
fn said(mounted: &Mounted, args: &[&str]) -> String {
    let output = run(mounted, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Lines of JSON.
fn lines(mounted: &Mounted, args: &[&str]) -> Vec<serde_json::Value> {
    let said = said(mounted, &[args, &["--json"]].concat());
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn files_are_read_without_a_mount() {
    if !can_mount() {
        return;
    }
    let mounted = Mounted::new(&[]);
    mounted.sh("mkdir -p run/deep/er empty; echo one > run/f; head -c 3000000 /dev/urandom > run/deep/large
        truncate -s 50M run/deep/er/sparse; echo end >> run/deep/er/sparse; chmod 640 run/f; ln -s deep/large run/link; mkfifo run/pipe
        printf '' > run/nothing; touch -d @1234567890 run/nothing");
    mounted.sh("cp -a run ../before; rm ../before/pipe");
    mounted.sh("echo two > run/f; echo new > run/new; cp -a run ../after; rm ../after/pipe");
    mounted.umount();

    let paths = |args: &[&str]| -> Vec<String> {
        lines(&mounted, args).iter().map(|line| line["path"].as_str().expect("a path").to_owned()).collect()
    };
    assert_eq!(paths(&["list"]), ["empty", "run"]);
    assert_eq!(paths(&["list", "/run/"]), ["deep", "f", "link", "new", "nothing", "pipe"]);
    assert_eq!(
        paths(&["list", "-R", "run/deep"]),
        ["er", "er/sparse", "large"],
        "directories come before what is in them"
    );
    let f = &lines(&mounted, &["list", "run/f"])[0];
    assert_eq!((&f["bytes"], &f["versions"], &f["mode"]), (&4.into(), &2.into(), &0o640.into()));
    assert!(said(&mounted, &["list", "run"]).contains("link -> deep/large"));

    let versions = lines(&mounted, &["versions", "run/f"]);
    let first = versions[0]["version"].to_string();
    assert_eq!(versions.len(), 2);
    assert_eq!(said(&mounted, &["cat", "run/f"]), "two\n");
    assert_eq!(said(&mounted, &["cat", "run/f", "--at", &first]), "one\n");
    assert_eq!(said(&mounted, &["cat", "run/nothing"]), "");

    // All of it, as it is and as it was.
    let dir = mounted.dir.path();
    let diff = |ours: &str, theirs: &str| {
        let script = format!(
            "diff -r --no-dereference {ours} {theirs} && test $(du -k {ours} | tail -1 | cut -f1) -lt 20000"
        );
        let done =
            std::process::Command::new("sh").arg("-c").arg(script).current_dir(dir).output().expect("sh");
        assert!(done.status.success(), "{}", text(&done.stdout));
    };
    let to = |name: &str| dir.join(name).display().to_string();
    said(&mounted, &["restore", "run", "--to", &to("now")]);
    diff("now", "after");
    let time = std::fs::metadata(dir.join("now/nothing")).and_then(|file| file.modified()).expect("a time");
    assert_eq!(time, std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_234_567_890));
    // The last that was written before the copy was made.
    let copied = lines(&mounted, &["list", "-R", "run"]);
    let old = copied.iter().filter(|file| !["f", "new"].contains(&file["path"].as_str().expect("a path")));
    let last = old.filter_map(|file| file["version"].as_u64()).max().expect("a version").to_string();
    said(&mounted, &["restore", "run", "--at", &last, "--to", &to("then")]);
    diff("then", "before");
    said(&mounted, &["restore", "/", "--to", &to("all")]);
    diff("all/run", "after");
    assert!(dir.join("all/empty").is_dir());
    said(&mounted, &["restore", "run/f", "--to", &to("one")]);
    diff("one/f", "after/f");

    // What cannot be, and how it is said.
    let refused = |args: &[&str], code: i32, why: &str| {
        let output = run(&mounted, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output.stderr).contains(why), "{args:?}: {}", text(&output.stderr));
    };
    refused(&["cat", "run"], 2, "not a file");
    refused(&["cat", "run/link"], 2, "not a file");
    refused(&["cat", "run/g"], 4, "\"run/g\" is not among the files");
    refused(&["cat", "run/f/g"], 4, "not among the files");
    refused(&["cat", "run/new", "--at", &first], 4, "no version up to");
    refused(&["list", "run/../run"], 2, "'..'");
    refused(&["versions", "run"], 2, "not a file");
    refused(&["restore", "run", "--to", &to("now")], 5, "--overwrite");
    said(&mounted, &["restore", "run", "--to", &to("now"), "--overwrite"]);
    diff("now", "after");
}
