//! Who is measured: stdchk, and the programs that people use instead, each with the setting that is best for it here.

use std::path::{Path, PathBuf};

use crate::timing::{Run, command_exists};

/// A program that stores versions of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Contender {
    Stdchk,
    /// stdchk, told not to compress: what choosing a codec costs.
    StdchkRaw,
    Dd,
    Zstd,
    Restic,
    Borg,
    Casync,
}

use Contender::*;

/// In the order in which they take turns.
pub const ALL: [Contender; 7] = [Dd, Stdchk, StdchkRaw, Zstd, Restic, Borg, Casync];

/// Where contenders keep what they store, and what is true of the data.
pub struct Field {
    pub stdchk: PathBuf,
    pub dir: PathBuf,
    /// Nothing in it can be compressed, so nobody need try.
    pub is_noise: bool,
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Stdchk => "stdchk",
            StdchkRaw => "stdchk none",
            Dd => "dd",
            Zstd => "zstd",
            Restic => "restic",
            Borg => "borg",
            Casync => "casync",
        }
    }

    /// How it is run, for people.
    pub fn setting(self, is_noise: bool) -> &'static str {
        match self {
            Stdchk => "stdchk save; restore",
            StdchkRaw => "stdchk save --compress none",
            Dd => "dd bs=1M conv=fsync; restored by cp from the page cache",
            Zstd => "zstd -1 -T0, then sync of the file; zstd -d",
            Restic if is_noise => "restic backup --compression off",
            Restic => "restic backup (compression auto)",
            Borg if is_noise => "borg create -C none, no encryption",
            Borg => "borg create -C lz4, no encryption",
            Casync => "casync make (chunks of 64 KiB, zstd), then sync of the store",
        }
    }

    pub fn is_here(self) -> bool {
        matches!(self, Stdchk | StdchkRaw | Dd) || command_exists(self.name())
    }

    pub fn store(self, field: &Field) -> PathBuf {
        field.dir.join(format!("store-{}", self.name().replace(' ', "-")))
    }

    /// Removes what would only be overwritten: that takes time, too.
    pub fn clear_old(self, field: &Field) {
        if self == Dd {
            let _ = std::fs::remove_file(self.store(field).join("copy"));
        }
    }

    pub fn runs_in_a_shell(self) -> bool {
        matches!(self, Zstd | Casync)
    }

    fn run(self, field: &Field, program: &str) -> Run {
        let mut run = Run::new(Path::new(program));
        let store = self.store(field);
        match self {
            Restic => {
                run.env("RESTIC_REPOSITORY", store).env("RESTIC_PASSWORD", "bench");
                run.env("RESTIC_CACHE_DIR", field.dir.join("restic-cache"));
            }
            Borg => {
                run.env("BORG_REPO", store).env("BORG_BASE_DIR", field.dir.join("borg-home"));
                run.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
            }
            Stdchk | StdchkRaw => {
                run.env("STDCHK_STORE", store);
            }
            _ => {}
        }
        run
    }

    /// Begins with an empty store.
    pub fn begin(self, field: &Field) {
        let store = self.store(field);
        let _ = std::fs::remove_dir_all(&store);
        match self {
            Restic => {
                let _ = std::fs::remove_dir_all(field.dir.join("restic-cache"));
                self.run(field, "restic").args(&["-q", "init"]).go();
            }
            Borg => {
                let _ = std::fs::remove_dir_all(field.dir.join("borg-home"));
                self.run(field, "borg").args(&["init", "-e", "none"]).go();
            }
            _ => std::fs::create_dir(&store).expect("a folder for a store"),
        }
    }

    /// Stores a version of a file, so that it is there after a power cut.
    pub fn save(self, field: &Field, file: &Path, version: usize) -> Run {
        let text = file.to_str().expect("a path that is text");
        let store = self.store(field);
        let place = |name: &str| store.join(name).to_str().expect("a path that is text").to_owned();
        let version = version.to_string();
        let mut run;
        match self {
            Stdchk | StdchkRaw => {
                run = self.run(field, field.stdchk.to_str().expect("a path that is text"));
                run.args(&["save", "bench", text, "--step", &version]);
                if self == StdchkRaw {
                    run.args(&["--compress", "none"]);
                }
            }
            Dd => {
                let (from, to) = (format!("if={text}"), format!("of={}", place("copy")));
                run = self.run(field, "dd");
                run.args(&[&from, &to, "bs=1M", "conv=fsync"]);
            }
            Zstd => {
                let script = "zstd -1 -T0 -q -f \"$1\" -o \"$2\" && sync \"$2\"";
                run = self.run(field, "sh");
                run.args(&["-c", script, "sh", text, &place(&version)]);
            }
            Restic => {
                let compression = if field.is_noise { "off" } else { "auto" };
                run = self.run(field, "restic");
                run.args(&["-q", "--compression", compression, "backup", text]);
            }
            Borg => {
                let compression = if field.is_noise { "none" } else { "lz4" };
                run = self.run(field, "borg");
                run.args(&["create", "-C", compression, &format!("::{version}"), text]);
            }
            Casync => {
                let script = "casync make --store=\"$1\" \"$2\" \"$3\" >/dev/null && sync -f \"$1\"";
                run = self.run(field, "sh");
                run.args(&["-c", script, "sh", &place("chunks"), &place(&format!("{version}.caibx")), text]);
            }
        }
        run
    }

    /// Brings a version back; `like` is what it should be, `to` a folder that is empty.
    pub fn restore(self, field: &Field, version: usize, like: &Path, to: &Path) -> Run {
        let store = self.store(field);
        let place = |path: PathBuf| path.to_str().expect("a path that is text").to_owned();
        let stored = |name: String| place(store.join(name));
        let target = place(to.join("image"));
        let folder = place(to.to_owned());
        let mut run;
        match self {
            Stdchk | StdchkRaw => {
                run = self.run(field, field.stdchk.to_str().expect("a path that is text"));
                run.args(&["restore", &format!("bench@{version}"), "--to", &folder]);
            }
            Dd => {
                run = self.run(field, "cp");
                run.args(&[&place(like.to_owned()), &target]);
            }
            Zstd => {
                run = self.run(field, "zstd");
                run.args(&["-d", "-q", &stored(version.to_string()), "-o", &target]);
            }
            Restic => {
                run = self.run(field, "restic");
                run.args(&["-q", "restore", "latest", "--target", &folder]);
            }
            Borg => {
                run = self.run(field, "sh");
                run.args(&["-c", "cd \"$1\" && borg extract \"::$2\"", "sh", &folder, &version.to_string()]);
            }
            Casync => {
                let chunks = format!("--store={}", stored("chunks".to_owned()));
                run = self.run(field, "casync");
                run.args(&["extract", &chunks, &stored(format!("{version}.caibx")), &target]);
            }
        }
        run
    }
}
