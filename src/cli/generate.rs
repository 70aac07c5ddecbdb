//! `oracle --generate WHAT`: the man page and shell completions, from the same definitions as `--help`.

use super::Exit;
use crate::oracle::output::to_standard_output;
use clap::{Command, ValueEnum};
use clap_complete::Shell;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum What {
    Man,
    CompleteBash,
    CompleteZsh,
    CompleteFish,
}

/// Prints `what` for the command line that `command` defines.
pub fn run(what: What, mut command: Command) -> anyhow::Result<Exit> {
    let mut text = Vec::new();
    let shell = match what {
        What::Man => {
            command.build();
            man_pages(&command, &mut text)?;
            None
        }
        What::CompleteBash => Some(Shell::Bash),
        What::CompleteZsh => Some(Shell::Zsh),
        What::CompleteFish => Some(Shell::Fish),
    };
    if let Some(shell) = shell {
        clap_complete::generate(shell, &mut command, "oracle", &mut text);
    }
    to_standard_output(|out| out.write_all(&text))?;
    Ok(Exit::Done)
}

/// The page of the program, followed by those of its subcommands.
fn man_pages(command: &Command, out: &mut Vec<u8>) -> std::io::Result<()> {
    clap_mangen::Man::new(command.clone()).render(out)?;
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        clap_mangen::Man::new(sub.clone()).render(out)?;
    }
    Ok(())
}
