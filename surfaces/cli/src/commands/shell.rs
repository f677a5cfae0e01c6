//! completions and man pages, from the one definition of the flags.

use std::path::Path;

use clap::CommandFactory;

use stdchk::{Error, Result};

use crate::args::Cli;

pub fn completions(shell: clap_complete::Shell) -> Result<u8> {
    clap_complete::generate(shell, &mut Cli::command(), "stdchk", &mut std::io::stdout());
    Ok(0)
}

pub fn man(to: &Path) -> Result<u8> {
    let cannot = |error| Error::io(format!("cannot write man pages to {}", to.display()), error);
    std::fs::create_dir_all(to).map_err(cannot)?;
    clap_mangen::generate_to(Cli::command(), to).map_err(cannot)?;
    Ok(0)
}
