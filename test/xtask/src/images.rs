//! The images of the test clusters: no registry, no container engine, only the files that are needed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::paths::{Paths, digest_files};
use crate::process::{Program, Step, step};
use crate::rust::{Products, version};

/// An image that the examples name and a test cluster can't pull. It gets one with the same few programs.
pub(crate) const EXAMPLES: &str = "docker.io/library/debian:12-slim";
const REPOSITORY: &str = "aliquot.local/kubelet-plugin";

/// An image archive and the name of the image in it.
pub(crate) struct Image {
    pub(crate) reference: String,
    pub(crate) file: PathBuf,
}

/// The images that every test cluster needs.
pub(crate) struct Images {
    pub(crate) plugin: Image,
    pub(crate) workload: Image,
    pub(crate) example: Image,
}

impl Images {
    pub(crate) fn all(&self) -> [&Image; 3] {
        [&self.plugin, &self.workload, &self.example]
    }
}

/// Makes the images. The plugin's tag changes with its content, so that an upgrade restarts its pods.
pub(crate) fn build(paths: &Paths, tool: &Path, products: &Products) -> Result<Images> {
    step("make images", &paths.log("images"), |step| {
        let dir = paths.target.join("images");
        let libs = dir.join("libs");
        copy_libc(&libs)?;
        let mut make = |name: &str, reference: String, args: &[String]| -> Result<Image> {
            let file = dir.join(format!("{name}.tar"));
            let program = Program::new(tool).args(["image", "--ref", &reference, "--libs"]).arg(&libs);
            step.run(&program.arg("--out").arg(&file).args(args))?;
            Ok(Image { reference, file })
        };
        let content = digest_files([&products.plugin, &products.hook])?;
        let plugin = [
            "--file".to_owned(),
            format!("{}:/usr/bin/aliquot-kubelet-plugin:0755", products.plugin.display()),
            "--file".to_owned(),
            format!("{}:/usr/bin/aliquot-cdi-hook:0755", products.hook.display()),
            "--entrypoint".to_owned(),
            "/usr/bin/aliquot-kubelet-plugin".to_owned(),
        ];
        let busybox = ["--busybox".to_owned()];
        Ok(Images {
            plugin: make("kubelet-plugin", format!("{REPOSITORY}:{}-{}", version(), &content[..8]), &plugin)?,
            workload: make("workload", format!("aliquot.local/workload:{}", version()), &busybox)?,
            example: make("example", EXAMPLES.to_owned(), &busybox)?,
        })
    })
}

/// Gets the images to the nodes.
pub(crate) fn load(step: &mut Step, tool: &Path, cluster: &str, images: &Images) -> Result<()> {
    let files = images.all().map(|image| &image.file);
    step.run(&Program::new(tool).args(["load", "--name", cluster]).args(files))
}

/// Copies the C library that the programs were linked with.
fn copy_libc(to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).map_err(Error::io("remove", to))?;
    }
    let program = Program::new("dpkg").args(["--listfiles", "libc6", "libgcc-s1"]);
    let mut copied = 0;
    for path in program.output()?.lines().filter(|path| is_needed(path)).map(Path::new) {
        let Ok(meta) = fs::symlink_metadata(path) else { continue };
        // Debian 13 has everything below /usr, with links that aren't part of these packages.
        let inside = path.strip_prefix("/usr").or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        let copy = to.join(inside);
        if let Some(dir) = copy.parent() {
            fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
        }
        if meta.is_symlink() {
            let target = fs::read_link(path).map_err(Error::io("read", path))?;
            symlink(target, &copy).map_err(Error::io("make", &copy))?;
        } else if meta.is_file() {
            fs::copy(path, &copy).map_err(Error::io("copy", path))?;
            copied += 1;
        }
    }
    if copied == 0 {
        return Err(Error::Answer { command: program.shown(), why: "it names no library".to_owned() });
    }
    Ok(())
}

fn is_needed(path: &str) -> bool {
    let path = path.strip_prefix("/usr").unwrap_or(path);
    path.starts_with("/lib") && path.contains(".so") && !path.contains("/gconv/") && !path.contains("/audit/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_go_into_an_image() {
        for path in ["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/ld-linux-x86-64.so.2"] {
            assert!(is_needed(path), "{path}");
        }
        for path in ["/usr/share/doc/libc6", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/gconv/BIG5.so"] {
            assert!(!is_needed(path), "{path}");
        }
    }

    #[test]
    fn the_library_of_this_machine_can_be_copied() {
        let dir = tempfile::tempdir().unwrap();
        let libs = dir.path().join("libs");
        copy_libc(&libs).unwrap();
        copy_libc(&libs).unwrap();
        assert!(libs.join("lib64").read_dir().unwrap().next().is_some());
    }
}
