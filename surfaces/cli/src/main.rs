//! The command line of stdchk. stdout is data, stderr is for people; see `docs/CLI.md`.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod output;
mod parse;

use clap::Parser;

use args::Cli;
use output::Out;

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    start_log(&cli);
    let out = Out::new(&cli);
    match commands::run(&cli, &out) {
        Ok(code) => std::process::ExitCode::from(code),
        Err(error) => {
            out.error(&error);
            std::process::ExitCode::from(output::exit_code(error.kind()))
        }
    }
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
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
}
