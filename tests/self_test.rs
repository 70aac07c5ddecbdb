//! `oracle self-test`, `packs`, `--generate`, `--help` and `--version`.

mod common;

use checkpoint_oracle::model::Pack;
use common::*;

const SUBCOMMANDS: [&str; 9] =
    ["run", "diff", "weights", "check", "faults", "probes", "kv-equivalence", "self-test", "packs"];

fn packs() -> Vec<&'static Pack> {
    let packs: Vec<&Pack> = Pack::embedded().iter().filter(|pack| pack.refuse.is_none()).collect();
    assert!(packs.len() >= 60);
    packs
}

#[test]
fn every_pack_gives_the_bits_that_were_promised() {
    let (code, stdout, stderr) = outcome(words("self-test"));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    for pack in packs() {
        let line = format!("{:12} ok     {}\n", pack.name, pack.self_test.logits_sha256);
        assert_says(&stdout, &[&line]);
        assert!(pack.self_test.logits_sha256.len() == 64);
    }
    assert_says(&stdout, &["threads 1, 2, 3, 7 alike", " packs passed on "]);
    assert!(!stdout.contains("FAILED"), "{stdout}");
    assert_eq!(outcome(words("--self-test")), (0, stdout, String::new()), "the flag is the subcommand");
}

#[test]
fn one_pack_can_be_tested_by_itself() {
    for pack in packs() {
        let (code, stdout, _) = outcome(words(&format!("self-test --pack {}", pack.name)));
        assert_eq!(code, 0, "{stdout}");
        assert_says(&stdout, &[&pack.self_test.logits_sha256, "1 pack passed on "]);
        let others = packs().into_iter().filter(|other| other.name != pack.name);
        assert!(others.into_iter().all(|other| !stdout.contains(&other.self_test.logits_sha256)), "{stdout}");
    }
}

#[test]
fn an_unknown_pack_is_refused() {
    let (code, stdout, stderr) = outcome(words("self-test --pack lama"));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_says(&stderr, &["no pack `lama`; the nearest are "]);
}

#[test]
fn the_families_are_listed_with_their_model_types() {
    let (code, stdout, stderr) = outcome(words("packs"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), Pack::embedded().len());
    for (line, pack) in lines.iter().zip(Pack::embedded()) {
        assert!(line.starts_with(&pack.name) && line.ends_with(&pack.title), "{line}");
        assert_says(line, &[&format!("model_type {}: ", pack.model_types.join(", "))]);
    }
    for name in ["llama", "mistral", "qwen2", "qwen3"] {
        assert!(lines.iter().any(|line| line.starts_with(&format!("{name} "))), "{stdout}");
    }
}

#[test]
fn the_families_are_listed_for_machines() {
    let (code, stdout, stderr) = outcome(words("packs --format json"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let list: Vec<serde_json::Value> = serde_json::from_str(&stdout).unwrap();
    assert_eq!(list.len(), Pack::embedded().len());
    let of = |name: &str| list.iter().find(|family| family["name"] == name).unwrap();
    let has = |name: &str, key: &str, entry: &str| of(name)[key].as_array().unwrap().iter().any(|e| e == entry);
    assert!(has("qwen3_moe", "options", "norm_topk_prob") && has("qwen3_moe", "options", "rope_theta"));
    assert!(!has("llama", "options", "norm_topk_prob"), "not an option of this family");
    assert!(has("qwen2", "model_types", "qwen2") && has("mixtral", "architectures", "MixtralForCausalLM"));
    for family in list.iter().filter(|family| family["verified"].is_object()) {
        let fixtures = family["verified"]["fixtures"].as_array().unwrap();
        for fixture in fixtures {
            assert!(root("fixtures").join(fixture.as_str().unwrap()).is_dir(), "{fixture}");
        }
    }
    assert_eq!(of("mistral3")["text_config"], "text_config");
    assert!(of("gemma4_assistant")["refused"].as_str().unwrap().contains("can't run alone"));
}

#[test]
fn the_man_page_and_the_completions_know_every_subcommand() {
    for (what, start) in [
        ("man", ".TH oracle 1"),
        ("complete-bash", "_oracle()"),
        ("complete-zsh", "#compdef oracle"),
        ("complete-fish", "# Print an optspec"),
    ] {
        let (code, stdout, stderr) = outcome(words(&format!("--generate {what}")));
        assert_eq!((code, stderr.as_str()), (0, ""), "{what}");
        assert!(stdout.starts_with(start), "{what}:\n{}", &stdout[..200]);
        for subcommand in SUBCOMMANDS {
            // A man page writes its hyphens as `\-`.
            let name = if what == "man" { subcommand.replace('-', "\\-") } else { subcommand.to_owned() };
            assert!(stdout.contains(&name), "{what} knows {subcommand}");
        }
        for option in ["positions", "allow-unused", "atol", "inject", "mutants"] {
            let name = if what == "man" { option.replace('-', "\\-") } else { option.to_owned() };
            assert!(stdout.contains(&name), "{what} knows --{option}");
        }
    }
}

#[test]
fn the_man_page_is_one_page_with_a_section_for_each_subcommand() {
    let (_, page, _) = outcome(words("--generate man"));
    let of = |macro_: &str| page.lines().filter(|line| line.starts_with(macro_)).collect::<Vec<_>>();
    assert_eq!(of(".TH").len(), 1, "{page}");
    let sections = of(".SH");
    for subcommand in SUBCOMMANDS {
        let name = format!(".SH \"ORACLE {}\"", subcommand.to_uppercase().replace('-', "\\-"));
        assert_eq!(sections.iter().filter(|section| **section == name).count(), 1, "{name}: {sections:?}");
    }
    assert_eq!(of(".SS SYNOPSIS").len(), SUBCOMMANDS.len());
    // The text has an apostrophe only if the string that stands for it is defined, and before it is used.
    let (define, first_use) = (page.find(".ds Aq"), page.find("\\*(Aq"));
    assert!(define.is_some() && first_use.is_none_or(|first_use| define < Some(first_use)));
    assert_eq!(of(".el .ds Aq").len(), 1);
}

#[test]
fn the_help_of_each_subcommand_has_an_example_that_works_as_written() {
    let mut tried = 0;
    for subcommand in SUBCOMMANDS {
        let (code, stdout, stderr) = outcome(words(&format!("{subcommand} --help")));
        assert_eq!((code, stderr.as_str()), (0, ""));
        let (_, examples) = stdout.split_once("Example").unwrap_or_else(|| panic!("{subcommand}:\n{stdout}"));
        assert!(examples.contains(&format!("oracle {subcommand}")), "{subcommand}:\n{stdout}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 120), "{subcommand}:\n{stdout}");
        let copy = Copy::of("llama-plain");
        for line in examples.lines().filter_map(|line| line.trim().strip_prefix("oracle ")) {
            let line = line.split(['>', '|']).next().unwrap().trim();
            let known = line.contains("fixtures/") || ["packs", "self-test"].iter().any(|word| line.starts_with(word));
            if known {
                let line = line.replace("ref.tsv", &copy.out().display().to_string());
                let (code, _, stderr) = outcome(words(&line));
                assert_eq!(code, 0, "oracle {line}: {stderr}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 5, "found {tried} examples to try");
    let (code, stdout, _) = outcome(words("--help"));
    assert_eq!(code, 0);
    assert_says(&stdout, &["Examples:", "MEMRA_ORACLE_OUT=", "Exit codes: 0 "]);
    assert!(SUBCOMMANDS.iter().all(|name| stdout.contains(&format!("\n  {name} "))), "{stdout}");
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = format!("oracle {}\n", env!("CARGO_PKG_VERSION"));
    for flag in ["--version", "-V"] {
        assert_eq!(outcome(words(flag)), (0, version.clone(), String::new()));
    }
}

#[test]
fn without_a_word_the_help_is_shown_as_bad_usage() {
    let (code, stdout, stderr) = outcome(oracle());
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_says(&stderr, &["Usage: oracle", "Examples:"]);
}

#[test]
fn the_accelerated_executor_is_part_of_it() {
    let (code, stdout, _) = outcome(words("self-test --pack llama"));
    assert_eq!(code, 0);
    assert_says(&stdout, &["accelerated (gemm", "within 8 times the reference's distance from the truth"]);
}
