//! The program as a runtime runs it: static, as root, in a mount namespace where the container's root is mounted and the
//! host is still in view. The images are small, and some are hostile.

// Clippy's exception for tests doesn't reach what they share.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use tempfile::TempDir;

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const DRIVER: &str = "opt/driver";
const LIBRARY: &str = "libfake.so.9.9";

/// The program with the flags that it is shipped with. What `cargo test` builds by itself is not static.
fn hook() -> &'static Path {
    static HOOK: OnceLock<PathBuf> = OnceLock::new();
    HOOK.get_or_init(|| {
        let target = "x86_64-unknown-linux-gnu";
        let built = Command::new(env!("CARGO"))
            .args(["rustc", "--quiet", "--package", "aliquot-cdi-hook", "--bin", "aliquot-cdi-hook"])
            .args(["--profile", "ci", "--target", target, "--message-format", "json", "--"])
            .args(["-C", "target-feature=+crt-static"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(built.status.success());
        let executable = String::from_utf8(built.stdout).unwrap().lines().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).unwrap();
            message["executable"].as_str().map(PathBuf::from)
        });
        executable.unwrap()
    })
}

fn compile(code: &str, arguments: &[&str], output: &Path) {
    let mut compiler = Command::new("cc")
        .args(["-o", output.to_str().unwrap(), "-x", "c", "-", "-x", "none"])
        .args(arguments)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(code.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
}

/// A library, and a program that needs it by its SONAME.
fn programs() -> &'static (PathBuf, PathBuf) {
    static PROGRAMS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (library, program) = (folder.join(LIBRARY), folder.join("program"));
        compile("int fake(void) { return 0; }", &["-shared", "-fPIC", "-Wl,-soname,libfake.so.9"], &library);
        compile("int fake(void); int main(void) { return fake(); }", &[library.to_str().unwrap()], &program);
        (library, program)
    })
}

/// A bundle with a small glibc image, a library of a driver at a place that no loader searches by itself, a program that
/// needs it, and, beside it, a folder of the host that nothing may change.
struct Machine {
    folder: TempDir,
}

struct Outcome {
    code: Option<i32>,
    stderr: String,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self { folder };
        let root = machine.root();
        for folder in ["lib64", "etc/ld.so.conf.d", "proc", "sys", DRIVER, "mnt"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        fs::create_dir(machine.host()).unwrap();
        fs::copy(LOADER, root.join(&LOADER[1..])).unwrap();
        // Where the loader looks without a cache.
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::copy("/lib/x86_64-linux-gnu/libc.so.6", root.join("lib/libc.so.6")).unwrap();
        fs::write(root.join("etc/ld.so.conf"), "include /etc/ld.so.conf.d/*.conf\n").unwrap();
        let (library, program) = programs();
        fs::copy(library, root.join(DRIVER).join(LIBRARY)).unwrap();
        fs::copy(library, machine.host().join(LIBRARY)).unwrap();
        fs::copy(program, root.join("program")).unwrap();
        fs::write(machine.host().join("file"), "precious").unwrap();
        let config = r#"{"ociVersion":"1.2.0","root":{"path":"rootfs"}}"#;
        fs::write(machine.folder.path().join("bundle/config.json"), config).unwrap();
        machine
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("bundle/rootfs")
    }

    fn host(&self) -> PathBuf {
        self.folder.path().join("host")
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.run_after("", "", arguments)
    }

    fn update(&self) -> Outcome {
        self.update_after("")
    }

    fn update_after(&self, setup: &str) -> Outcome {
        self.run_after(setup, "", &["update-ldcache", "--ldconfig", "/sbin/ldconfig", "--folder", "/opt/driver"])
    }

    /// Runs the program after `setup`, a piece of shell in the namespace, with the variables `environment`. The shell stays,
    /// as process 1 of the container: all-powerful and with the host in view, like a runtime's.
    fn run_after(&self, setup: &str, environment: &str, arguments: &[&str]) -> Outcome {
        self.run_in(&["--mount"], setup, environment, arguments)
    }

    fn run_in(&self, namespaces: &[&str], setup: &str, environment: &str, arguments: &[&str]) -> Outcome {
        assert!(rustix::process::geteuid().is_root(), "these tests mount, so they have to run as root");
        let outside = (self.tree("host"), host_loader_files());
        let script = format!(
            "set -e; mount --bind $ROOT $ROOT; mount -t proc proc $ROOT/proc; {setup}
             cd $ROOT; env -i {environment} \"$@\"; exit"
        );
        let mut child = Command::new("unshare")
            .args(namespaces)
            .args(["--pid", "--fork", "--mount-proc", "sh", "-c", &script, "sh"])
            .arg(hook())
            .args(arguments)
            .env("ROOT", self.root())
            .env("HOST", self.host())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let bundle = self.folder.path().join("bundle");
        let state = serde_json::json!({"ociVersion": "1.2.0", "id": "c", "status": "creating", "bundle": bundle});
        child.stdin.take().unwrap().write_all(state.to_string().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(outside, (self.tree("host"), host_loader_files()), "files outside of the container changed");
        Outcome { code: output.status.code(), stderr: String::from_utf8(output.stderr).unwrap() }
    }

    /// Every file below a folder of the machine: its kind, mode, and what is in it.
    fn tree(&self, folder: &str) -> BTreeMap<PathBuf, String> {
        fn walk(base: &Path, folder: &Path, tree: &mut BTreeMap<PathBuf, String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let name = path.strip_prefix(base).unwrap().to_owned();
                let what = if metadata.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else if metadata.is_dir() {
                    walk(base, &path, tree);
                    format!("folder {:o}", metadata.mode())
                } else {
                    format!("file {:o} {:x}", metadata.mode(), hash(&fs::read(&path).unwrap()))
                };
                tree.insert(name, what);
            }
        }
        let mut tree = BTreeMap::new();
        let folder = self.folder.path().join(folder);
        walk(&folder, &folder, &mut tree);
        tree
    }

    /// What differs in the container after `action`, by name.
    fn changes(&self, action: impl FnOnce()) -> Vec<String> {
        let before = self.tree("bundle/rootfs");
        action();
        let after = self.tree("bundle/rootfs");
        assert!(before.keys().all(|path| after.contains_key(path)), "files of the image are gone");
        let changed = after.iter().filter(|(path, what)| before.get(*path) != Some(what));
        changed.map(|(path, _)| path.display().to_string()).collect()
    }

    fn program_runs(&self) -> bool {
        let program = Command::new("chroot").arg(self.root()).arg("/program").stderr(Stdio::null()).status();
        program.unwrap().success()
    }

    fn link(&self, target: impl AsRef<Path>, link: &str) {
        let link = self.root().join(link);
        if link.is_dir() && !link.is_symlink() {
            fs::remove_dir_all(&link).unwrap();
        }
        symlink(target, link).unwrap();
    }
}

fn hash(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// The files of this machine that a program gone astray would write.
fn host_loader_files() -> BTreeMap<PathBuf, u64> {
    let mut files = BTreeMap::new();
    for path in ["/etc/ld.so.cache", "/etc/ld.so.conf", "/var/cache/ldconfig/aux-cache"].map(PathBuf::from) {
        files.insert(path.clone(), hash(&fs::read(path).unwrap_or_default()));
    }
    if let Ok(entries) = fs::read_dir("/etc/ld.so.conf.d") {
        files.extend(entries.map(|entry| (entry.unwrap().path(), 0)));
    }
    files
}

#[track_caller]
fn succeeded(outcome: &Outcome) {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}

#[track_caller]
fn refused(outcome: &Outcome, message: &str) {
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
}

#[track_caller]
fn skipped(outcome: &Outcome, message: &str) {
    succeeded(outcome);
    assert!(outcome.stderr.contains("the loader cache is left as it is"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
}

#[test]
fn links_are_made_with_their_folders_and_again_without_harm() {
    let machine = Machine::new();
    machine.link("libfake.so.0", "opt/driver/libold.so");
    let arguments = [
        "create-symlinks",
        "--link",
        "libfake.so.9.9::/opt/driver/libfake.so.9",
        "--link",
        "../../opt/driver/libfake.so.9::/usr/lib64/libfake.so",
        "--link",
        "libfake.so.9::/opt/driver/libold.so",
    ];
    let changes = machine.changes(|| succeeded(&machine.run(&arguments)));
    let expected = ["opt/driver/libfake.so.9", "opt/driver/libold.so", "usr", "usr/lib64", "usr/lib64/libfake.so"];
    assert_eq!(changes, expected);
    let tree = machine.tree("bundle/rootfs");
    assert_eq!(tree[Path::new("opt/driver/libfake.so.9")], "-> libfake.so.9.9");
    assert_eq!(tree[Path::new("opt/driver/libold.so")], "-> libfake.so.9");
    assert_eq!(tree[Path::new("usr/lib64")], "folder 40755");
    assert_eq!(machine.changes(|| succeeded(&machine.run(&arguments))), [""; 0]);
}

#[test]
fn a_file_of_the_image_is_never_replaced_by_a_link() {
    let machine = Machine::new();
    fs::write(machine.root().join("opt/driver/libmine.so"), "mine").unwrap();
    for place in ["/opt/driver/libmine.so", "/opt/driver"] {
        let link = format!("libfake.so.9.9::{place}");
        let changes = machine.changes(|| {
            let outcome = machine.run(&["create-symlinks", "--link", &link]);
            refused(
                &outcome,
                &format!("can't make link {place} in the container: the image has a file or folder there"),
            );
        });
        assert_eq!(changes, [""; 0]);
    }
}

#[test]
fn links_of_the_image_lead_nowhere_outside() {
    let machine = Machine::new();
    let host = machine.host();
    let up = format!("../../../../../../../../../..{}", host.display());
    // Resolved in the container, where nothing is at that place.
    machine.link(&host, "absolute");
    machine.link(&up, "relative");
    for folder in ["absolute", "relative"] {
        let changes = machine.changes(|| {
            let outcome = machine.run(&["create-symlinks", "--link", &format!("x::/{folder}/link")]);
            refused(
                &outcome,
                &format!("can't make folder /{folder} in the container: there is a link that leads nowhere"),
            );
        });
        assert_eq!(changes, [""; 0]);
    }
    // And where something is.
    let inside = machine.root().join(host.strip_prefix("/").unwrap());
    fs::create_dir_all(&inside).unwrap();
    for folder in ["absolute", "relative"] {
        succeeded(&machine.run(&["create-symlinks", "--link", &format!("x::/{folder}/sub/{folder}")]));
        assert_eq!(fs::read_link(inside.join("sub").join(folder)).unwrap(), Path::new("x"));
    }
    // A link at the very place is replaced, not followed.
    machine.link(host.join("file"), "opt/driver/libfake.so");
    succeeded(&machine.run(&["create-symlinks", "--link", "libfake.so.9::/opt/driver/libfake.so"]));
    assert_eq!(fs::read_link(machine.root().join("opt/driver/libfake.so")).unwrap(), Path::new("libfake.so.9"));
}

#[test]
fn links_go_neither_into_proc_nor_to_volumes() {
    let machine = Machine::new();
    machine.link(format!("/proc/1/root{}", machine.host().display()), "magic");
    let setup = "mount --bind $HOST $ROOT/mnt;";
    for (place, folder) in [("/magic/link", "/magic"), ("/mnt/link", "/mnt"), ("/mnt/sub/link", "/mnt")] {
        let outcome = machine.run_after(setup, "", &["create-symlinks", "--link", &format!("x::{place}")]);
        refused(&outcome, &format!("folder {folder} of the container lies on a volume"));
    }
}

#[test]
fn libraries_are_found_and_a_later_ldconfig_keeps_them() {
    let machine = Machine::new();
    assert!(!machine.program_runs(), "the loader finds the library without a cache, so this tests nothing");
    let changes = machine.changes(|| succeeded(&machine.update()));
    let expected = ["etc/ld.so.cache", "etc/ld.so.conf.d/00-aliquot.conf", "opt/driver/libfake.so.9"];
    assert_eq!(changes, expected);
    assert!(machine.program_runs());
    let configuration = machine.root().join("etc/ld.so.conf.d/00-aliquot.conf");
    assert_eq!(fs::read_to_string(&configuration).unwrap(), "# The GPU driver's libraries\n/opt/driver\n");
    assert_eq!(fs::metadata(&configuration).unwrap().permissions().mode() & 0o777, 0o644);
    succeeded(&machine.update());
    assert!(Command::new("/sbin/ldconfig").arg("-r").arg(machine.root()).status().unwrap().success());
    assert!(machine.program_runs());
}

#[test]
fn an_image_without_configuration_gets_only_the_cache() {
    let machine = Machine::new();
    fs::remove_dir_all(machine.root().join("etc")).unwrap();
    let changes = machine.changes(|| succeeded(&machine.update()));
    assert_eq!(changes, ["etc", "etc/ld.so.cache", "opt/driver/libfake.so.9"]);
    assert!(machine.program_runs());
}

#[test]
fn works_in_a_user_namespace() {
    let machine = Machine::new();
    // As `hostUsers: false` has it: root of the container is no root of the host.
    fs::set_permissions(machine.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let arguments = ["update-ldcache", "--folder", "/opt/driver"];
    succeeded(&machine.run_in(&["--user", "--map-root-user", "--mount"], "", "", &arguments));
    assert!(machine.program_runs());
}

#[test]
fn nothing_is_done_where_nothing_can_be() {
    let hide = "for f in /sbin/ldconfig /sbin/ldconfig.real; do [ ! -e $f ] || mount --bind /dev/null $(readlink -f $f); done;";
    let read_only = "mount -o remount,bind,ro $ROOT;";
    let machine = Machine::new();
    let changes = machine.changes(|| {
        skipped(&machine.update_after(read_only), "the container's root is read-only");
        skipped(&machine.update_after(hide), "the host has no ldconfig that can be used (/sbin/ldconfig.real: ");
        skipped(
            &machine.update_after("mount --bind $HOST $ROOT/etc;"),
            "folder /etc of the container lies on a volume",
        );
    });
    assert_eq!(changes, [""; 0]);
    fs::rename(machine.root().join(&LOADER[1..]), machine.root().join("lib64/ld-musl-x86_64.so.1")).unwrap();
    assert_eq!(machine.changes(|| skipped(&machine.update(), "the container has no loader of glibc")), [""; 0]);
}

/// Each line: what the image has, and whether the container can still start.
#[test]
fn hostile_images_reach_nothing_with_the_loader_cache() {
    type Target = fn(&Machine) -> PathBuf;
    let host = |machine: &Machine| machine.host();
    let magic = |machine: &Machine| PathBuf::from(format!("/proc/1/root{}", machine.host().display()));
    let up = |machine: &Machine| PathBuf::from(format!("../../../../../../../..{}", machine.host().display()));
    let file = |machine: &Machine| machine.host().join("file");
    let images: [(&str, Target, bool); 15] = [
        ("etc", host, false),
        ("etc", up, false),
        ("etc", magic, true),
        ("etc/ld.so.conf.d", host, true),
        ("etc/ld.so.conf.d", up, true),
        ("etc/ld.so.conf.d", magic, true),
        ("etc/ld.so.conf.d/00-aliquot.conf", file, true),
        ("etc/ld.so.conf.d/00-aliquot.conf.tmp", file, true),
        ("etc/ld.so.cache", file, true),
        ("etc/ld.so.cache~", file, false),
        ("opt/driver", host, true),
        ("opt/driver", up, true),
        ("opt/driver", magic, true),
        ("var/cache/ldconfig", host, true),
        ("var/cache/ldconfig", magic, true),
    ];
    for (link, target, starts) in images {
        let machine = Machine::new();
        fs::create_dir_all(machine.root().join("var/cache")).unwrap();
        machine.link(target(&machine), link);
        let outcome = machine.update();
        assert_eq!(outcome.code == Some(0), starts, "{link} -> {:?}: {}", target(&machine), outcome.stderr);
    }
}

#[test]
fn a_configuration_of_the_image_can_name_nothing_of_the_host() {
    let machine = Machine::new();
    let host = machine.host();
    fs::write(host.join("more.conf"), format!("/proc/1/root{}\n", host.display())).unwrap();
    let text = format!(
        "{host}\n/proc/1/root{host}\n/proc/1/cwd\ninclude /proc/1/root{host}/more.conf\n../../../..{host}\n",
        host = host.display()
    );
    fs::write(machine.root().join("etc/ld.so.conf"), text).unwrap();
    succeeded(&machine.update());
    assert!(machine.program_runs());
}

/// A program in the place of the host's `ldconfig` tells what it was given.
#[test]
fn ldconfig_runs_with_no_environment_few_rights_and_no_host() {
    let machine = Machine::new();
    let spy = machine.folder.path().join("spy");
    let code = r#"
        #include <stdio.h>
        #include <string.h>
        extern char **environ;
        int main(int argc, char **argv) {
            FILE *report = fopen("/report", "w");
            for (int i = 0; i < argc; i++) fprintf(report, "argument %s\n", argv[i]);
            for (char **e = environ; *e; e++) fprintf(report, "environment %s\n", *e);
            FILE *status = fopen("/proc/self/status", "r");
            char line[256];
            while (fgets(line, sizeof line, status))
                if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10)) fputs(line, report);
            FILE *mounts = fopen("/proc/self/mounts", "r");
            int count = 0;
            while (fgets(line, sizeof line, mounts)) count++;
            fprintf(report, "mounts %d\n", count);
            return fclose(report);
        }"#;
    compile(code, &["-static"], &spy);
    let preload = machine.root().join("preload.so");
    let code = r#"
        #include <stdlib.h>
        #include <fcntl.h>
        __attribute__((constructor)) static void loaded(void) { creat(getenv("MARKER"), 0644); }"#;
    compile(code, &["-shared", "-fPIC"], &preload);
    let marker = machine.root().join("marker");
    let loaded = Command::new("true").env("LD_PRELOAD", &preload).env("MARKER", &marker).status().unwrap();
    assert!(loaded.success() && marker.exists(), "the library to preload does nothing, so this tests nothing");
    fs::remove_file(&marker).unwrap();

    let preload = format!("LD_PRELOAD={} LD_LIBRARY_PATH=/mnt MARKER={}", preload.display(), marker.display());
    // A program of the host that isn't static would be loaded by the image's loader.
    let dynamic = "--ldconfig /bin/true";
    let dynamic: Vec<_> = ["update-ldcache", "--folder", "/opt/driver"].into_iter().chain(dynamic.split(' ')).collect();
    succeeded(&machine.run_after("", &preload, &dynamic));
    assert!(machine.program_runs());
    let arguments = ["update-ldcache", "--ldconfig", spy.to_str().unwrap(), "--folder", "/a", "--folder", "/b"];
    succeeded(&machine.run_after("mount -t tmpfs none $HOST;", &preload, &arguments));
    assert!(!marker.exists(), "LD_PRELOAD was used");

    let dac_override = 2;
    let expected = format!(
        "argument ldconfig\nargument /a\nargument /b\n\
         CapInh:\t{0:016x}\nCapPrm:\t{dac_override:016x}\nCapEff:\t{dac_override:016x}\nCapBnd:\t{dac_override:016x}\n\
         CapAmb:\t{0:016x}\nNoNewPrivs:\t1\nmounts 2\n",
        0
    );
    assert_eq!(fs::read_to_string(machine.root().join("report")).unwrap(), expected);
}

#[test]
fn the_hosts_own_root_is_refused() {
    let machine = Machine::new();
    fs::write(machine.folder.path().join("bundle/config.json"), r#"{"root":{"path":"/"}}"#).unwrap();
    let outcome = machine.run(&["create-symlinks", "--link", "x::/tmp/aliquot-cdi-hook-test"]);
    refused(&outcome, "the container's root / is the host's root");
    assert!(!Path::new("/tmp/aliquot-cdi-hook-test").is_symlink());
}

#[test]
fn an_unknown_option_is_refused_with_the_usage() {
    let machine = Machine::new();
    let outcome = machine.run(&["update-ldcache", "--folder", "/opt/driver", "--verbose"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains(r#"update-ldcache: "--verbose" is not known"#), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("Usage"), "{}", outcome.stderr);
}
