//! Files that are no files, and links.

#![cfg(unix)]

use super::made::{Folder, SINGLE};
use std::os::unix::fs::symlink;
use std::process::Command;

#[test]
fn a_named_pipe_does_not_block() {
    for name in [SINGLE, "config.json"] {
        let folder = Folder::empty();
        if name != SINGLE {
            folder.write_good(SINGLE, &["a"]);
        } else {
            folder.put("config.json", b"{}");
        }
        assert!(Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        folder.assert_refused("file-not-regular", &[name, "expected a regular file, found a named pipe"]);
    }
}

#[test]
fn a_folder_or_a_device_in_place_of_the_weights() {
    let folder = Folder::with_config();
    std::fs::create_dir(folder.join(SINGLE)).unwrap();
    folder.assert_refused("file-not-regular", &[SINGLE, "found a folder"]);
    let folder = Folder::with_config();
    symlink("/dev/zero", folder.join(SINGLE)).unwrap();
    folder.assert_refused("file-not-regular", &[SINGLE, "found a device"]);
}

#[test]
fn links_to_files_are_followed_as_a_download_cache_needs() {
    let blobs = Folder::with_config();
    blobs.write_good("blob", &["a"]);
    let folder = Folder::empty();
    symlink(blobs.join("blob"), folder.join(SINGLE)).unwrap();
    symlink(blobs.join("config.json"), folder.join("config.json")).unwrap();
    folder.assert_sound();
    std::fs::remove_file(blobs.join("blob")).unwrap();
    folder.assert_refused("file-broken-link", &[SINGLE, "blob", "does not exist"]);
}

#[test]
fn a_link_to_itself() {
    let folder = Folder::with_config();
    symlink(SINGLE, folder.join(SINGLE)).unwrap();
    folder.assert_refused("file-unreadable", &[SINGLE, "can't be read"]);
}

#[test]
fn a_file_without_read_permission() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::with_config();
    folder.write_good(SINGLE, &["a"]);
    std::fs::set_permissions(folder.join(SINGLE), std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(folder.join(SINGLE)).is_ok() {
        return folder.assert_sound(); // The superuser reads everything.
    }
    folder.assert_refused("file-unreadable", &[SINGLE, "can't be read", "denied"]);
}
