//! Results appear whole or not at all.

use checkpoint_oracle::oracle::output::{Output, exit_without_leftovers};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn open(path: &Path) -> Result<Output, String> {
    Output::open(Some(path)).map_err(|error| error.to_string())
}

fn write(path: &Path, content: &str) -> Result<(), String> {
    open(path)?.commit(|out| out.write_all(content.as_bytes())).map_err(|error| error.to_string())
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_only_with_its_whole_content() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.tsv");
    let output = open(&path).unwrap();
    assert_eq!(names(folder.path()), [""; 0], "opening leaves nothing, so that a killed run leaves nothing");
    output
        .commit(|out| {
            out.write_all(b"half")?;
            assert!(!path.exists());
            out.write_all(b" and half")
        })
        .unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "half and half");
    assert_eq!(names(folder.path()), ["out.tsv"]);
}

#[test]
fn a_failure_leaves_the_old_file_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.tsv");
    fs::write(&path, "old").unwrap();
    let full = |out: &mut dyn Write| {
        out.write_all(&[b'x'; 1 << 20])?;
        Err(io::Error::from(io::ErrorKind::StorageFull))
    };
    let error = open(&path).unwrap().commit(full).unwrap_err().to_string();
    assert!(error.starts_with(&format!("{}: cannot be written: ", path.display())), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names(folder.path()), ["out.tsv"]);
    write(&path, "new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
}

#[test]
fn a_missing_folder_and_a_folder_as_target_are_refused_before_the_work() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("none");
    let error = open(&missing.join("out.tsv")).unwrap_err();
    assert!(error.ends_with(&format!("the folder {} does not exist", missing.display())), "{error}");
    for target in [folder.path().to_path_buf(), folder.path().join("new/"), folder.path().join("..")] {
        let error = open(&target).unwrap_err();
        assert!(error.ends_with("is a folder; expected the name of a file to write"), "{error}");
    }
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(open(&folder.path().join("file/out.tsv")).is_err());
    assert_eq!(names(folder.path()), ["file"]);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_read_only_folder_is_refused_before_the_work() {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o555)).unwrap();
        if fs::write(folder.path().join("probe"), "").is_ok() {
            eprintln!("skipped: this user writes into read-only folders, as root does");
            return;
        }
        let error = open(&folder.path().join("out.tsv")).unwrap_err();
        assert!(error.contains("no file can be created in the folder"), "{error}");
    }

    #[test]
    fn a_read_only_file_is_refused() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("golden.tsv");
        fs::write(&path, "golden").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(write(&path, "new").unwrap_err().ends_with("is read-only"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "golden");
    }

    #[test]
    fn a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own() {
        let folder = TempDir::new().unwrap();
        let (path, usual) = (folder.path().join("out.tsv"), folder.path().join("usual"));
        fs::write(&usual, "").unwrap();
        write(&path, "new").unwrap();
        assert_eq!(mode(&path), mode(&usual));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
        write(&path, "newer").unwrap();
        assert_eq!((mode(&path), fs::read_to_string(&path).unwrap().as_str()), (0o646, "newer"));
    }

    #[test]
    fn who_reads_the_old_file_keeps_reading_it_whole() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("out.tsv");
        fs::write(&path, "old").unwrap();
        let reader = fs::File::open(&path).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(io::read_to_string(reader).unwrap(), "old");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_symbolic_link_stays_and_what_it_names_is_replaced() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("real")).unwrap();
        let (link, target) = (folder.path().join("link.tsv"), folder.path().join("real/out.tsv"));
        symlink("real/out.tsv", &link).unwrap();
        for content in ["through a dangling link", "through a link to a file"] {
            write(&link, content).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), content);
        }
        assert_eq!(names(&folder.path().join("real")), ["out.tsv"]);
        symlink("circle", folder.path().join("circle")).unwrap();
        assert!(open(&folder.path().join("circle")).unwrap_err().contains("leads in a circle"));
    }

    #[test]
    fn a_device_is_written_in_place() {
        write(Path::new("/dev/null"), "gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_device_is_an_error() {
        let error = write(Path::new("/dev/full"), "too much").unwrap_err();
        assert!(error.starts_with("/dev/full: cannot be written: No space left on device"), "{error}");
    }
}

/// What the handler of an interrupt does, in the middle of writing. Runs only as the child of the test below.
#[test]
fn interrupted_child() {
    if let Some(path) = std::env::var_os("OUTPUT_TEST_TARGET") {
        let interrupted = open(Path::new(&path)).unwrap().commit(|out| {
            out.write_all(&[b'x'; 1 << 20])?;
            exit_without_leftovers(77)
        });
        panic!("went on after the interrupt: {}", interrupted.is_ok());
    }
}

#[test]
fn an_interrupt_leaves_the_old_file_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.tsv");
    fs::write(&path, "old").unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "interrupted_child"])
        .env("OUTPUT_TEST_TARGET", &path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(77));
    assert_eq!(names(folder.path()), ["out.tsv"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}
