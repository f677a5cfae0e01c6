//! mount and umount: three processes. The one that was called waits until the mount is there; a supervisor that it leaves behind starts
//! the one that answers the kernel, and starts it again when it has crashed.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use stdchk::files::Files;
use stdchk::{Error, Kind, Result, SaveOptions};
use stdchk_fuse::{Mount, MountOptions};

use super::{memory, open, open_or_create};
use crate::args::{Cli, MOUNTED, MountArgs, Role};
use crate::output::{Out, count};

/// The pause before one that crashed is started again; twice as long each time that it was not even ready.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long an unmount waits until everything is stored.
const PATIENCE: Duration = Duration::from_secs(600);

pub fn mount(cli: &Cli, out: &Out, args: &MountArgs) -> Result<u8> {
    if args.directory == Path::new(MOUNTED) {
        // Who is not root is told below why it is not there.
        let _ = std::fs::create_dir(MOUNTED);
    }
    match args.role {
        _ if args.foreground => serve(cli, out, args),
        None => leave_behind(cli, out, args),
        Some(Role::Supervisor) => supervise(args),
        Some(Role::Server | Role::Successor) => serve(cli, out, args),
    }
}

/// This program again, for the same mount.
fn again(role: &str) -> Result<Command> {
    let program = std::env::current_exe().map_err(|e| Error::io("cannot find this program", e))?;
    let mut command = Command::new(program);
    let said = std::env::args_os().skip(1);
    let mut is_role = false;
    let said = said.filter(|arg| !(std::mem::replace(&mut is_role, arg == "--role") || arg == "--role"));
    command.args(said).args(["--role", role]);
    Ok(command)
}

fn start(mut command: Command) -> Result<(Child, Option<String>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Error::io("cannot start the process of the mount", e))?;
    let mut line = String::new();
    let stdout = child.stdout.take().expect("piped");
    let said = BufReader::new(stdout).read_line(&mut line);
    Ok((child, said.is_ok_and(|bytes| bytes > 0).then_some(line)))
}

/// Has a program live in no directory of its own: paths are said from the root.
fn from_root(command: Command, paths: &[&OsStr]) -> Result<Command> {
    let absolute = |path: &OsStr| {
        let absolute = std::path::absolute(path).map(PathBuf::into_os_string);
        absolute.map_err(|e| Error::io(format!("cannot find {}", path.display()), e))
    };
    let mut anew = Command::new(command.get_program());
    for arg in command.get_args() {
        let bytes = arg.as_bytes();
        // A path may stand alone, or behind the name of an option.
        let value = if bytes.starts_with(b"--") {
            bytes.iter().position(|&byte| byte == b'=').map_or(0, |at| at + 1)
        } else {
            0
        };
        let (name, path) = (OsStr::from_bytes(&bytes[..value]), OsStr::from_bytes(&bytes[value..]));
        match paths.contains(&path) {
            true => anew.arg([name, &absolute(path)?].join(OsStr::new(""))),
            false => anew.arg(arg),
        };
    }
    for name in ["STDCHK_STORE", "STDCHK_POOL_KEY", "STDCHK_CACHE"] {
        if let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty() && !is_url(value)) {
            anew.env(name, absolute(&value)?);
        }
    }
    anew.current_dir("/");
    Ok(anew)
}

fn is_url(text: &OsStr) -> bool {
    text.as_bytes().windows(3).any(|bytes| bytes == b"://")
}

/// Starts a supervisor that lives on, and waits until the mount is there.
fn leave_behind(cli: &Cli, out: &Out, args: &MountArgs) -> Result<u8> {
    let log = log_file(args)?;
    let text = log.as_ref().map_or("no log is kept".to_owned(), |(path, _)| path.display().to_string());
    let command = again("supervisor")?;
    // Nobody should find the directory from which it was called in use.
    let store = cli.store.as_deref().map(OsStr::new).filter(|store| !is_url(store));
    let files = [Some(args.directory.as_os_str()), store, cli.pool_key.as_deref().map(Path::as_os_str)];
    let log_path = args.log.as_deref().map(Path::as_os_str);
    let paths: Vec<&OsStr> = files.into_iter().chain([log_path]).flatten().collect();
    let mut command = from_root(command, &paths)?;
    match &log {
        Some((_, file)) => {
            let file = file.try_clone().map_err(|e| Error::io("cannot write the log", e))?;
            command.stderr(file)
        }
        None => command.stderr(Stdio::null()),
    };
    let begun = log.as_ref().and_then(|(_, file)| file.metadata().ok()).map_or(0, |meta| meta.len());
    let (mut child, said) = start(command)?;
    if let Some(line) = said {
        out.did(
            || serde_json::from_str(&line).unwrap_or_default(),
            || format!("mounted on {}; messages go to {text}", args.directory.display()),
        );
        return Ok(0);
    }
    // What went wrong is for whoever called, and stands at the end of the log.
    let code = child.wait().ok().and_then(|status| status.code()).unwrap_or(1);
    if let Some((path, _)) = &log {
        let all = std::fs::read(path).unwrap_or_default();
        let new = all.get(begun as usize..).unwrap_or_default();
        eprint!("{}", String::from_utf8_lossy(new));
    }
    Ok(u8::try_from(code).unwrap_or(1).max(1))
}

/// Where messages go: the file that was named, or one for this directory among those of the user, whose folder is made.
fn log_file(args: &MountArgs) -> Result<Option<(PathBuf, File)>> {
    let path = match (&args.log, std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")) {
        (Some(path), ..) => path.clone(),
        (None, Some(state), _) => PathBuf::from(state).join("stdchk").join(log_name(&args.directory)),
        (None, None, Some(home)) => {
            PathBuf::from(home).join(".local/state/stdchk").join(log_name(&args.directory))
        }
        (None, None, None) => return Ok(None),
    };
    let folder = path.parent().filter(|_| args.log.is_none());
    let opened = folder
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
    match opened {
        Ok(file) => Ok(Some((path, file))),
        Err(_) if args.log.is_none() => Ok(None),
        Err(error) => Err(Error::io(format!("cannot write {}", path.display()), error)),
    }
}

fn log_name(directory: &Path) -> String {
    let known = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    format!("mount{}.log", known.display().to_string().trim_end_matches('/').replace('/', "-"))
}

/// Of glibc: what is so large is given back to the system when it is free. Left to itself it keeps more and more of what large writes take,
/// for each thread, and a mount with many writers takes twice its budget.
const LARGE: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1048576");

/// Starts the one that answers the kernel, and starts it again when it has crashed.
fn supervise(args: &MountArgs) -> Result<u8> {
    // What ends the session of whoever called does not end this.
    stdchk_fuse::leave_session();
    let (mut pause, mut is_first) = (PAUSE, true);
    loop {
        let mut server = again(if is_first { "server" } else { "successor" })?;
        if std::env::var_os(LARGE.0).is_none() {
            server.env(LARGE.0, LARGE.1);
        }
        let (mut child, said) = start(server)?;
        pause = if said.is_some() { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        if let (Some(line), true) = (said, is_first) {
            let _ = writeln!(std::io::stdout(), "{}", line.trim_end());
            is_first = false;
        }
        let status = child.wait().map_err(|e| Error::io("cannot wait for the process of the mount", e))?;
        if is_first || status.success() {
            return Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
        }
        tracing::error!("the process of the mount ended: {status}; it is started again");
        std::thread::sleep(pause);
        // Somebody may have unmounted it, or mounted something else there.
        if !stdchk_fuse::is_dead(&args.directory) {
            tracing::info!("{} was unmounted", args.directory.display());
            return Ok(0);
        }
    }
}

/// Answers the kernel until the directory is unmounted.
fn serve(cli: &Cli, out: &Out, args: &MountArgs) -> Result<u8> {
    let directory = &args.directory;
    let repository = if args.read_only { open(cli)? } else { open_or_create(cli)? };
    let save = SaveOptions {
        durability: args.durability,
        memory: memory(cli),
        chunking: args.how.chunking,
        coding: super::save::coding(&args.how)?,
        ..SaveOptions::default()
    };
    let files = Files::open(repository, save, args.read_only)?;
    let options = MountOptions {
        allow_other: args.allow_other,
        read_only: args.read_only,
        replaces: args.role == Some(Role::Successor),
    };
    let mount = Mount::new(files, directory, &options).map_err(|error| {
        let place = directory.display();
        let is_about_rights = matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound);
        let hint = match is_about_rights && directory.is_dir() {
            true => ": who is not root needs fusermount3 (Debian's package fuse3), and for --allow-other user_allow_other in /etc/fuse.conf",
            false => "",
        };
        Error::io(format!("cannot mount on {place}{hint}"), error)
    })?;
    let signals = super::pool::signals()?;
    let mounted = directory.clone();
    std::thread::spawn(move || {
        // Those that are open are closed, and stored, by their programs; nobody new comes in.
        while signals.recv().is_ok() {
            if stdchk_fuse::is_mount(&mounted) == Some(true)
                && let Err(error) = stdchk_fuse::unmount(&mounted, true)
            {
                tracing::warn!("{error}");
            }
        }
    });
    let id = std::process::id();
    let said = json!({ "mounted": directory, "process": id });
    if args.foreground {
        out.did(|| said, || format!("mounted on {}", directory.display()));
    } else {
        println!("{said}");
    }
    mount.run().map_err(|error| Error::io(format!("the mount on {} ended", directory.display()), error))?;
    Ok(0)
}

/// Who has something open there, for people.
fn used_by(directory: &Path) -> String {
    let users = stdchk_fuse::users_of(directory);
    if users.is_empty() { String::new() } else { format!(", in use by {}", users.join(", ")) }
}

pub fn umount(out: &Out, directory: &Path, lazy: bool) -> Result<u8> {
    if stdchk_fuse::is_mount(directory) != Some(true) {
        let text = format!("{} is no mount of stdchk, and is left alone", directory.display());
        return Err(Error::invalid(text));
    }
    let server = stdchk_fuse::server_of(directory);
    let unstored = if lazy { 0 } else { stdchk_fuse::wait_stored(directory) };
    if unstored > 0 {
        let text = format!(
            "{} still open for writing, or closed and cannot be stored, as the log of the mount says{}: close them, or make room; with --lazy it is unmounted all the same",
            count(u64::from(unstored), "file"),
            used_by(directory)
        );
        return Err(Error::new(Kind::Conflict, text));
    }
    stdchk_fuse::unmount(directory, lazy).map_err(|error| {
        Error::io(format!("cannot unmount {}{}", directory.display(), used_by(directory)), error)
    })?;
    let begun = Instant::now();
    // What was closed just before is still being stored.
    while let Some(server) = server
        && !lazy
        && stdchk_fuse::is_alive(server)
    {
        if begun.elapsed() > PATIENCE {
            let text = format!("process {server} has not stored everything yet");
            return Err(Error::new(Kind::Conflict, text));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    out.did(|| json!({ "unmounted": directory }), || format!("unmounted {}", directory.display()));
    Ok(0)
}
