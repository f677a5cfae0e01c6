//! The one definition of verbs and flags: help, completions and man pages are made from it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueHint};

use crate::parse;

/// Save state as fast as memory and disk allow, store only what changed, and restart from the newest whole checkpoint.
#[derive(Parser)]
#[command(name = "stdchk", version, max_term_width = 100, disable_help_subcommand = true)]
pub struct Cli {
    /// Where checkpoints are kept: any directory, made by the first save; or pool://HOST:PORT.
    #[arg(long, global = true, env = "STDCHK_STORE", value_name = "DIR|POOL", value_hint = ValueHint::DirPath)]
    pub store: Option<String>,
    /// The file with the pool's key.
    #[arg(long, global = true, env = "STDCHK_POOL_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub pool_key: Option<PathBuf>,
    /// Print JSON: one object, or one object a line for lists.
    #[arg(long, global = true)]
    pub json: bool,
    /// Print nothing but what was asked for and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Say more; twice, even more.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How what is said is written, of which -v says more: with json, one object a line, with the time.
    #[arg(
        long,
        global = true,
        env = "STDCHK_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_default_value = true
    )]
    pub log_format: LogFormat,
    /// About how much memory to use, at least 64MiB; by default 256MiB. With pool join: how much to lend.
    #[arg(long, global = true, value_parser = parse::memory, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Threads that hash, compress and verify; by default one for each processor.
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// How a log is written.
#[derive(Clone, Copy, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// What to do.
#[derive(Subcommand)]
pub enum Verb {
    /// Save files, directories or standard input as one checkpoint
    Save(SaveArgs),
    /// List applications, or the checkpoints of one
    List {
        /// The application.
        app: Option<String>,
    },
    /// Show one checkpoint: members, sizes, what is new and shared
    Show {
        /// app, app@step or app@step.generation; without a step the newest.
        checkpoint: String,
        /// Say how the new bytes of each member were compressed, what was measured, and what follows from it.
        #[arg(long)]
        explain: bool,
    },
    /// Restore the newest whole checkpoint, or a given one, into a directory
    Restore(RestoreArgs),
    /// Write one member to standard output
    Cat {
        /// app@step:path; without @step from the newest whole checkpoint.
        member: String,
        /// Whose member, where several ranks have one of that path.
        #[arg(long)]
        rank: Option<u32>,
    },
    /// Print the step of the newest whole checkpoint; exit code 4 if there is none
    Latest {
        /// The application.
        app: String,
        /// Read and check every byte before offering it.
        #[arg(long)]
        verify: bool,
    },
    /// Show the members and byte ranges that differ between two checkpoints, without reading their data
    Diff {
        /// app, app@step or app@step.generation.
        from: String,
        /// The same.
        to: String,
    },
    /// Show or set what is kept of an application, and how it is saved
    Policy(PolicyArgs),
    /// Drop what the policies do not keep
    Prune {
        /// Only this application.
        app: Option<String>,
        /// Show the plan and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Drop checkpoints, whatever the policies say
    Forget {
        /// app@step or app@step.generation; app alone only with --all.
        #[arg(required = true)]
        checkpoints: Vec<String>,
        /// Allow to name an application, and drop all of its checkpoints.
        #[arg(long)]
        all: bool,
    },
    /// Free what nothing refers to any more; safe while others save
    Gc {
        /// Show the plan and do nothing.
        #[arg(long)]
        dry_run: bool,
        /// Do not rewrite packs of which much is dead.
        #[arg(long)]
        no_compact: bool,
    },
    /// Read and check everything, or some checkpoints; say which are hurt and which are whole
    Verify {
        /// app, app@step or app@step.generation; none is the whole repository.
        checkpoint: Option<String>,
        /// Mend what can be mended.
        #[arg(long)]
        repair: bool,
    },
    /// Write one checkpoint as one self-contained file or stream
    Export {
        /// app, app@step or app@step.generation.
        checkpoint: String,
        /// The file; - is standard output.
        #[arg(long, short, default_value = "-", value_hint = ValueHint::FilePath)]
        output: PathBuf,
    },
    /// Show checkpoints as plain files: every file that is closed after writing is a version
    Mount(MountArgs),
    /// End a mount, when everything that was closed is stored
    Umount {
        /// The directory.
        #[arg(value_hint = ValueHint::DirPath, default_value = MOUNTED)]
        directory: PathBuf,
        /// Also where programs still have files open: nobody new comes in, and it ends with the last of them.
        #[arg(long)]
        lazy: bool,
    },
    /// Look at files that were written through a mount, and read them, without a mount
    #[command(subcommand)]
    Files(FilesVerb),
    /// Save what was exported elsewhere
    Import {
        /// The file; - is standard input.
        #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
        input: PathBuf,
        /// The application, if not the one that it was exported from.
        #[arg(long)]
        app: Option<String>,
        /// The step, if not the one that it was exported from.
        #[arg(long)]
        step: Option<u64>,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Say how often to save, what that costs, and what would help most
    #[command(mut_args(quantities_may_be_negative))]
    Plan(PlanArgs),
    /// Measure on your own files what the papers measured on theirs
    #[command(subcommand)]
    Study(StudyVerb),
    /// Exit with 0 when a checkpoint is due now, and with 11 when it is not
    Due(DueArgs),
    /// Wait until a checkpoint survives what a level says
    Wait {
        /// app, app@step or app@step.generation; without a step the newest.
        checkpoint: String,
        /// staged, local, replicated, or drained.
        #[arg(long = "for", value_parser = stdchk::parse_durability, value_name = "LEVEL")]
        level: stdchk::Durability,
        /// How long at most.
        #[arg(long, default_value = "1h", value_parser = parse::duration, value_name = "TIME")]
        patience: std::time::Duration,
    },
    /// Begin a checkpoint to which several processes add; prints the session
    Begin {
        /// The application.
        app: String,
        /// The step.
        #[arg(long)]
        step: u64,
        /// How many parts there will be; the commit fails if it has not as many.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        parts: Option<u32>,
        /// How long the session may be silent before it is given up.
        #[arg(long, default_value = "24h", value_parser = parse::duration, value_name = "TIME")]
        lease: std::time::Duration,
    },
    /// Add a part to a session
    Add {
        /// The session, as printed by begin.
        session: String,
        /// Files, directories, or - for standard input.
        #[arg(required = true, value_hint = ValueHint::AnyPath)]
        paths: Vec<PathBuf>,
        /// The rank of this part.
        #[arg(long, default_value_t = 0)]
        rank: u32,
        /// Put this part in the place of earlier ones of its rank, as when a rank tries again.
        #[arg(long)]
        replace: bool,
        /// The member's name for standard input.
        #[arg(long, default_value = "stdin", value_name = "PATH")]
        stdin_name: String,
        #[command(flatten)]
        engine: EngineArgs,
    },
    /// Commit a session: all its parts become visible at once
    Commit {
        /// The session.
        session: String,
        /// A word for people.
        #[arg(long, default_value = "")]
        note: String,
    },
    /// Give a session up
    Abort {
        /// The session.
        session: String,
    },
    /// List the sessions that are open
    Sessions,
    /// Lend memory and disk, and save to what others lend
    #[command(subcommand)]
    Pool(PoolVerb),
    /// Print a script that completes this command in a shell
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    Man {
        /// The directory.
        #[arg(value_hint = ValueHint::DirPath)]
        to: PathBuf,
    },
}

/// What to do with a pool.
#[derive(Subcommand)]
pub enum PoolVerb {
    /// Make the key of a pool: a file that its members and savers must have
    Key {
        /// The file; it must not exist.
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// For a network that is trusted: what goes between members can be read there, though not changed. Without it there is TLS 1.3.
        #[arg(long)]
        plain: bool,
    },
    /// Keep the names of a pool, until it is ended by a signal
    Start {
        /// Where to listen; port 0 is any that is free. [default: 127.0.0.1:7117; with --catalog: nowhere, since everybody asks etcd]
        #[arg(long, value_name = "HOST:PORT")]
        listen: Option<String>,
        /// Where the names are kept; a pool that was begun there is gone on with.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, required_unless_present = "catalog")]
        state: Option<PathBuf>,
        /// Keep the names in etcd instead: etcd://HOST:PORT,HOST:PORT/PREFIX (etcds:// for TLS). Any number of managers may do so, or none.
        #[arg(long, value_name = "PLACE", conflicts_with = "state")]
        catalog: Option<String>,
        /// Copies of everything. What a pool promises is settled when it is founded. [default: 1]
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=8))]
        replicas: Option<u8>,
        /// Rather than copies, K shards of each pack with M of parity, each with another benefactor: any M of them may be lost.
        #[arg(long, value_name = "K+M", conflicts_with = "replicas")]
        erasure: Option<stdchk::Code>,
        /// How many benefactors a saver uses; 0 is all. [default: 0]
        #[arg(long)]
        stripe: Option<u16>,
        /// How long nothing may be heard of a benefactor before it counts as lost.
        #[arg(long, default_value = "30s", value_parser = parse::duration, value_name = "TIME")]
        patience: std::time::Duration,
        /// Answer those who ask for metrics here: GET /metrics, in the text form of Prometheus.
        #[arg(long, value_name = "HOST:PORT")]
        metrics: Option<String>,
    },
    /// Lend memory (--memory SIZE) or a folder (--disk DIR --size SIZE), until it is ended by a signal
    Join {
        /// The pool: its manager, pool://HOST:PORT, or where its names are, etcd://HOST:PORT,HOST:PORT/PREFIX.
        #[arg(value_name = "POOL")]
        manager: String,
        /// A folder to lend, besides the memory that --memory says or alone.
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "size")]
        disk: Option<PathBuf>,
        /// How much of it.
        #[arg(long, value_parser = parse::bytes, value_name = "SIZE", requires = "disk")]
        size: Option<u64>,
        /// Where to listen; by default at the address from which the manager is reached. With memory and a folder, that has the next port.
        #[arg(long, value_name = "HOST:PORT")]
        listen: Option<String>,
        /// How others reach it, where that is not where it listens: behind a translation of addresses, or in a container. With memory and a folder, that has the next port.
        #[arg(long, value_name = "HOST:PORT")]
        advertise: Option<String>,
        /// Give away what is held, and lend nothing, while the owner of the machine wants it: load or load=PART (other programs use more than half, or that part, of all
        /// processors), login (somebody is logged in), signal (SIGUSR1 came, and no SIGUSR2 since). Several with commas between them.
        #[arg(long, value_name = "SIGNS", value_delimiter = ',')]
        yield_when: Vec<stdchk::pool::YieldWhen>,
        /// How long nothing of that must have shown before it lends again.
        #[arg(long, default_value = "1m", value_parser = parse::duration, value_name = "TIME", requires = "yield_when")]
        calm: std::time::Duration,
        /// What fails together with it, for example rack=r7; by default this machine. Copies are kept apart.
        #[arg(long, value_name = "WORD")]
        domain: Option<String>,
        /// Give away no more than this in a second when members come and go, or one was lost, for example 200MB/s. What savers wait for is not held up.
        #[arg(long, value_parser = parse::rate, value_name = "RATE")]
        move_rate: Option<u64>,
        /// How long it may take to give everything away when it is ended.
        #[arg(long, default_value = "30s", value_parser = parse::duration, value_name = "TIME")]
        grace: std::time::Duration,
        /// Answer those who ask for metrics here: GET /metrics, in the text form of Prometheus.
        #[arg(long, value_name = "HOST:PORT")]
        metrics: Option<String>,
    },
    /// Show the benefactors of the pool, what they hold, and what is still to be done
    Status {
        /// Go on, once a second.
        #[arg(long)]
        watch: bool,
    },
    /// Have a benefactor, or all of this machine, give everything away and end
    Leave {
        /// Its identity or its address; by default all at the address from which the pool is reached.
        benefactor: Option<String>,
    },
    /// Say where checkpoints are drained to, show how far that is, or end it
    Tier {
        /// Copy committed checkpoints to this empty directory, or s3://BUCKET/PREFIX, from now on.
        #[arg(long, value_name = "PLACE", conflicts_with_all = ["stop", "release"])]
        drain: Option<String>,
        /// Copy no more. What has arrived stays.
        #[arg(long, conflicts_with = "release")]
        stop: bool,
        /// Make what a pool was drained to a repository of its own, when the pool is gone.
        #[arg(long, value_name = "PLACE")]
        release: Option<String>,
    },
    /// Take a benefactor that is lost out of the pool, without waiting for it
    Evict {
        /// Its identity or its address.
        benefactor: String,
    },
    /// Wait until everything lies where it belongs, as often as was promised
    Wait {
        /// How long at most.
        #[arg(long, default_value = "1h", value_parser = parse::duration, value_name = "TIME")]
        patience: std::time::Duration,
    },
}

/// What to save and how.
#[derive(Args)]
pub struct SaveArgs {
    /// The application, then files, directories, or - for standard input; with --by-name only files.
    #[arg(required = true, value_name = "APP|PATH", value_hint = ValueHint::AnyPath)]
    pub what: Vec<PathBuf>,
    /// The step.
    #[arg(long, required_unless_present = "by_name", conflicts_with = "by_name")]
    pub step: Option<u64>,
    /// File each path by its name A.Ni.Tj, under application A, rank i and step j.
    #[arg(long)]
    pub by_name: bool,
    /// The member's name for standard input.
    #[arg(long, default_value = "stdin", value_name = "PATH")]
    pub stdin_name: String,
    /// A word for people.
    #[arg(long, default_value = "")]
    pub note: String,
    /// From now on cut every pack of this repository into K shards, with M of parity, of which any M may be lost or damaged; none ends that.
    #[arg(long, value_parser = parse::erasure, value_name = "K+M")]
    pub erasure: Option<parse::Erasure>,
    /// Write figures of this save there, in the text form of Prometheus, for whoever collects such files.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "by_name")]
    pub metrics_file: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// How bytes are cut and coded. What is not said is as the application's policy has it, or else auto.
#[derive(Args, Clone)]
pub struct HowArgs {
    /// auto, page, page:SIZE, cdc or cdc:SIZE; a save without it follows the application's policy, or else auto.
    #[arg(long, value_parser = parse::chunking)]
    pub chunking: Option<stdchk::ChunkingChoice>,
    /// auto, none, lz4, zstd or zstd:LEVEL; with planes2+, planes4+ or planes8+ before it for arrays of numbers, and delta+ before
    /// that for those that change a little from version to version. A save without it follows the application's policy, or else auto.
    #[arg(long, value_parser = parse::coding, value_name = "CODEC")]
    pub compress: Option<parse::Compress>,
    /// What --compress auto puts first: time (compress only where that does not make the commit longer), balanced (up to a
    /// fourth longer for the sake of space) or space.
    #[arg(long, value_parser = parse::prefer, value_name = "WHAT")]
    pub prefer: Option<stdchk::Prefer>,
}

/// How to chunk, compress and sync.
#[derive(Args, Clone)]
pub struct EngineArgs {
    #[command(flatten)]
    pub how: HowArgs,
    /// staged (survives the process), local (survives a power cut), or in a pool replicated (on as many benefactors as the pool
    /// promises), which is what local means there, or drained (in the safe storage of 'pool tier').
    #[arg(long, default_value = "local", value_parser = stdchk::parse_durability, value_name = "LEVEL")]
    pub durability: stdchk::Durability,
    /// In a pool: what is new goes to the benefactor of this machine, as long as it has room; copies go to others, as ever.
    #[arg(long)]
    pub local_first: bool,
    /// What to compare with: app@step, or none; by default the application's newest.
    #[arg(long, value_name = "CHECKPOINT")]
    pub parent: Option<String>,
}

/// Where root mounts who says nothing else.
pub const MOUNTED: &str = "/stdchk";

/// What to do with files that have names.
#[derive(Subcommand)]
pub enum FilesVerb {
    /// List what is in a directory, or one file
    List {
        /// The path, as below the mount; without it, what is in the root.
        #[arg(default_value = "")]
        path: String,
        /// All that lies below the directory.
        #[arg(short = 'R', long)]
        recursive: bool,
        #[command(flatten)]
        at: AtArgs,
    },
    /// List the versions of a file, the oldest first
    Versions {
        /// The path, as below the mount.
        path: String,
    },
    /// Write a file to standard output
    Cat {
        /// The path, as below the mount.
        path: String,
        #[command(flatten)]
        at: AtArgs,
    },
    /// Restore a file, or all that lies below a directory, into a directory
    Restore {
        /// The path, as below the mount; / is everything.
        path: String,
        /// The directory; made if it is not there.
        #[arg(long, value_hint = ValueHint::DirPath)]
        to: PathBuf,
        /// Replace files that are there already.
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        at: AtArgs,
    },
}

/// As of when files are meant.
#[derive(Args)]
pub struct AtArgs {
    /// Version N, as 'files versions' counts them; of several files, the newest versions up to it: what there was when it was written.
    #[arg(long, value_name = "N")]
    pub at: Option<u64>,
}

/// What to mount and where.
#[derive(Args)]
pub struct MountArgs {
    /// The directory; nothing is in it. The one that is meant where none is named is made.
    #[arg(value_hint = ValueHint::DirPath, default_value = MOUNTED)]
    pub directory: PathBuf,
    #[command(flatten)]
    pub how: HowArgs,
    /// What fsync, and close, wait for: as with save.
    #[arg(long, default_value = "local", value_parser = stdchk::parse_durability, value_name = "LEVEL")]
    pub durability: stdchk::Durability,
    /// Other users may use it, too; file modes say what they may do.
    #[arg(long)]
    pub allow_other: bool,
    /// It can only be read.
    #[arg(long)]
    pub read_only: bool,
    /// Do not go to the background, and do not start again after a crash.
    #[arg(long)]
    pub foreground: bool,
    /// Where messages go; by default a file in ~/.local/state/stdchk.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Which of the processes of a mount this is.
    #[arg(long, hide = true, value_enum)]
    pub role: Option<Role>,
}

/// The processes that a mount leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// It starts the other one again.
    Supervisor,
    /// It answers the kernel.
    Server,
    /// It does so in the place of one that has crashed.
    Successor,
}

/// What to restore and where to.
#[derive(Args)]
pub struct RestoreArgs {
    /// app, app@step or app@step.generation; without a step the newest whole one.
    pub checkpoint: String,
    /// The directory; made if it is not there.
    #[arg(long, value_hint = ValueHint::DirPath)]
    pub to: PathBuf,
    /// Replace files that are there already.
    #[arg(long)]
    pub overwrite: bool,
    /// Only to look at it: do not count this as a restart after a failure, from which 'plan --app' and 'due' learn.
    #[arg(long)]
    pub inspect: bool,
}

/// What to measure.
#[derive(Subcommand)]
pub enum StudyVerb {
    /// How much of each file is found in the one before it, by several ways to cut
    Similarity(SimilarityArgs),
    /// How well and how fast compressors do, and below which bandwidth of the store that pays
    Compression(CompressionArgs),
}

/// Files to be compressed.
#[derive(Args)]
pub struct CompressionArgs {
    /// Checkpoints of any kind; with several, also a line for each, or for each NAME where they are given as NAME=FILE.
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Bytes of each file that are studied.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse::bytes)]
    pub limit: u64,
    /// What the store takes from one process; several, to compare stores, with commas or again.
    #[arg(long, value_name = "RATE", value_parser = parse::rate, value_delimiter = ',')]
    pub bandwidth: Vec<u64>,
    /// Measure what the store takes: write 256 MiB into this folder, and sync them.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub measure: Option<PathBuf>,
    /// How many checkpoints are written for each that is read again.
    #[arg(long, value_name = "N", default_value = "1")]
    pub checkpoints_per_restart: f64,
    /// Also draw it, as SVG or PNG.
    #[arg(long, value_name = "FILE.svg|png", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// Settle what is recommended for this application, as policy does.
    #[arg(long, value_name = "APP")]
    pub write_policy: Option<String>,
}

/// Files that follow each other.
#[derive(Args)]
pub struct SimilarityArgs {
    /// The states of one thing, oldest first.
    #[arg(required = true, num_args = 2.., value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// Bytes of each file that are studied.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse::bytes)]
    pub limit: u64,
    /// Window lengths and numbers of bits as in the paper's tables 5 to 7: takes long.
    #[arg(long)]
    pub sweep: bool,
    /// Also draw it, as SVG or PNG.
    #[arg(long, value_name = "FILE.svg|png", value_hint = ValueHint::FilePath)]
    pub plot: Option<PathBuf>,
    /// Where stdchk itself saves the files meanwhile.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub scratch: Option<PathBuf>,
    /// Settle what is recommended for this application, as policy does.
    #[arg(long, value_name = "APP")]
    pub write_policy: Option<String>,
}

/// Whether to save now.
#[derive(Args)]
pub struct DueArgs {
    /// The application.
    pub app: String,
    /// Mean time between interruptions of the job; by default what was measured.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub mtti: Option<std::time::Duration>,
}

/// So that a quantity below zero is told to be none, and not taken for a flag that is not known.
fn quantities_may_be_negative(arg: clap::Arg) -> clap::Arg {
    let takes_value = arg.get_action().takes_values();
    if takes_value { arg.allow_hyphen_values(true) } else { arg }
}

/// What is known of the job and its machine.
#[derive(Args)]
pub struct PlanArgs {
    /// Compute the figures of the papers for one of their machines instead.
    #[arg(long, value_name = "MACHINE", value_parser = crate::commands::MACHINES)]
    pub reproduce: Option<String>,
    /// Draw a chart, as SVG or PNG: the share of work over the interval, or the papers' figures.
    #[arg(long, value_name = "FILE.svg|png", value_hint = ValueHint::FilePath)]
    pub plot: Option<std::path::PathBuf>,
    /// Use what was measured of this application for whatever is not given.
    #[arg(long, value_name = "APP")]
    pub app: Option<String>,
    /// Nodes that the job runs on; any of them that fails stops it.
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub nodes: u64,
    /// Size of a checkpoint, all nodes together.
    #[arg(long, value_name = "SIZE", value_parser = parse::some_bytes, required_unless_present_any = ["app", "reproduce"])]
    pub ckpt_size: Option<u64>,
    /// What the store takes, all nodes together.
    #[arg(long, value_name = "RATE", value_parser = parse::rate, required_unless_present_any = ["app", "reproduce"])]
    pub bandwidth: Option<u64>,
    /// Mean time between failures of one node; with a trace of failures that of the trace, if it is not given.
    #[arg(long, value_name = "TIME", value_parser = parse::duration, required_unless_present_any = ["app", "reproduce", "failures"])]
    pub node_mtti: Option<std::time::Duration>,
    /// How long the job would run without checkpoints and failures; with --app a day, if it is not given.
    #[arg(long, value_name = "TIME", value_parser = parse::duration, required_unless_present_any = ["app", "reproduce"])]
    pub solve_time: Option<std::time::Duration>,
    /// Time before the first byte of a checkpoint.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub startup_time: Option<std::time::Duration>,
    /// Files or objects that the store creates in a second, where every process creates one of its own: for a file each some
    /// thousands, through one metadata server; for objects that are created in parallel 60000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub creates_per_second: Option<u64>,
    /// Processes on each node that create one.
    #[arg(long, value_name = "N", default_value = "1", requires = "creates_per_second", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub processes_per_node: u64,
    /// Time to begin again after a failure; by default that of reading a whole checkpoint.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub restart_time: Option<std::time::Duration>,
    /// Bandwidth of one node's link.
    #[arg(long, value_name = "RATE", value_parser = parse::rate)]
    pub link_bandwidth: Option<u64>,
    /// Bandwidth through the middle of the network.
    #[arg(long, value_name = "RATE", value_parser = parse::rate)]
    pub bisection: Option<u64>,
    /// Share of a checkpoint that deduplication leaves to write, in per cent; by default all of it.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub new: Option<u8>,
    /// How many times smaller compression makes it, how fast one node compresses (500MB/s, if it is not given), and how fast it
    /// brings back (as fast, if it is not given): 1.5, 1.5:800MB/s or 1.5:800MB/s:2GB/s.
    #[arg(long, value_name = "FACTOR[:RATE[:RATE]]", value_parser = parse::shrinking)]
    pub compress: Option<parse::Shrinking>,
    /// Memory of other nodes that takes a checkpoint at the speed of the network and drains to the store. Of the network a link of
    /// 1 GB/s a node is assumed, if nothing is said of it.
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes)]
    pub overlay: Option<u64>,
    /// Also simulate so many runs.
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub simulate: Option<u32>,
    /// How failures come in the simulation: exponential (the default), weibull:SHAPE, or a CSV file with a line for each
    /// interruption of the job, its time in seconds or as a date (2026-01-31 23:59:59, or 1/31/2026 23:59).
    #[arg(long, value_name = "HOW", value_hint = ValueHint::FilePath, requires = "simulate")]
    pub failures: Option<String>,
    /// The column of the file with these times, by its name in the header or its number; by default the one whose name speaks of
    /// a start or a time, or where there are no names the first that holds times.
    #[arg(long, value_name = "COLUMN", requires = "failures")]
    pub failures_column: Option<String>,
}

/// What to keep.
#[derive(Args)]
pub struct PolicyArgs {
    /// The application.
    pub app: String,
    /// Keep this many of the newest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_last: Option<u32>,
    /// Keep those whose step is a multiple of this.
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub keep_every: Option<u64>,
    /// Whatever else is said, drop what is older than this, but never the newest.
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    pub purge_after: Option<std::time::Duration>,
    /// Keep only the newest.
    #[arg(long, conflicts_with_all = ["keep_last", "keep_every", "keep_all"])]
    pub replace: bool,
    /// Keep everything, as if nothing had been said of it.
    #[arg(long, conflicts_with_all = ["keep_last", "keep_every", "purge_after"])]
    pub keep_all: bool,
    #[command(flatten)]
    pub how: HowArgs,
}
