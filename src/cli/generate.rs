//! `oracle --generate WHAT`: the man page and shell completions, from the same definitions as `--help`.

use super::Exit;
use crate::oracle::output::to_standard_output;
use clap::{Command, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{self, Write};

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
            man_page(&command, &mut text)?;
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

/// One page: the program, then a section for each subcommand.
fn man_page(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let page = Man::new(command.clone());
    out.extend(section(|out| page.render_title(out))?);
    out.extend_from_slice(PREAMBLE.as_bytes());
    for render in [Man::render_name_section, Man::render_synopsis_section, Man::render_description_section] {
        out.extend(section(|out| render(&page, out))?);
    }
    out.extend(section(|out| page.render_options_section(out))?);
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let name = format!("{} {}", command.get_name(), sub.get_name()).to_uppercase().replace('-', "\\-");
        out.extend(format!(".SH \"{name}\"\n").into_bytes());
        let page = Man::new(sub.clone());
        let mut parts = Vec::new();
        for render in [Man::render_synopsis_section, Man::render_description_section, Man::render_options_section] {
            parts.extend(section(|out| render(&page, out))?);
        }
        if sub.get_after_help().is_some() || sub.get_after_long_help().is_some() {
            parts.extend(section(|out| page.render_extra_section(out))?);
        }
        // Its sections are parts of one here.
        out.extend(String::from_utf8_lossy(&parts).replace(".SH ", ".SS ").into_bytes());
    }
    out.extend(section(|out| page.render_extra_section(out))?);
    out.extend(section(|out| page.render_version_section(out))?);
    Ok(())
}

/// What defines the apostrophe; each part is rendered with it, and a page needs it once.
const PREAMBLE: &str = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";

/// One part of a page, without the preamble.
fn section(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    render(&mut text)?;
    Ok(text.strip_prefix(PREAMBLE.as_bytes()).map(<[u8]>::to_vec).unwrap_or(text))
}
