//! The command line of stdchk. stdout is data, stderr is for people; see `docs/CLI.md`.
#![forbid(unsafe_code)]

mod args;
mod chart;
mod commands;
mod output;
mod parse;
mod picture;

use std::io::Write;

use clap::Parser;

use args::{Cli, LogFormat};
use output::Out;

fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    start_log(&cli);
    let out = Out::new(&cli);
    match commands::run(&cli, &out).and_then(|code| out.failure().map_or(Ok(code), Err)) {
        Ok(code) => std::process::ExitCode::from(code),
        Err(error) => {
            out.error(&error);
            std::process::ExitCode::from(output::exit_code(error.kind()))
        }
    }
}

/// Help, the version, or what is wrong with the flags; as JSON, too, where that was asked for.
fn refuse(error: &clap::Error) -> std::process::ExitCode {
    let _ = error.print();
    if error.use_stderr() && std::env::args_os().any(|arg| arg == "--json") {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let object = serde_json::json!({ "error": { "kind": "invalid", "message": first } });
        let _ = writeln!(std::io::stdout(), "{object}");
    }
    std::process::ExitCode::from(error.exit_code() as u8)
}

fn start_log(cli: &Cli) {
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        _ => "trace",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("STDCHK_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE);
    match cli.log_format {
        LogFormat::Text => log.without_time().with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
