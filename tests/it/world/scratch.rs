//! A directory of a test's own, on the file system of the build, so that the executable can be hard-linked into it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::executable;

/// Removed, with all that is in it, when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("it-{}-{number}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.file(name).into_os_string().into_string().unwrap()
    }

    pub fn write_text(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// A copy of the executable. Another process makes it: if this one wrote the file, a child that another thread
    /// forks at that moment would hold it open for writing, and it could not be executed for a while.
    pub fn copy(&self, name: &str) -> PathBuf {
        let copy = self.file(name);
        let status = Command::new("cp").arg(executable()).arg(&copy).status().unwrap();
        assert!(status.success());
        copy
    }

    /// A symbolic link `name` to the executable.
    pub fn link(&self, name: &str) -> PathBuf {
        let link = self.file(name);
        symlink(executable(), &link).unwrap();
        link
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
