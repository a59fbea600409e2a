//! The one way to build, run and test Aliquot, for people and for CI: `cargo xtask help`.
//!
//! What is noise goes to `target/logs`; what is slow is kept in a cache outside the checkout; whatever was interrupted or
//! killed, the next run starts clean.

mod bench;
mod clients;
mod cluster;
mod demo;
mod error;
mod fuzz;
mod images;
mod kubernetes;
mod lock;
mod packages;
mod paths;
mod policy;
mod process;
mod progress;
mod rust;
mod signals;
mod suite;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::{Values, split_reference};
use demo::Existing;
use error::{Error, Result};
use paths::Paths;
use suite::Selection;

const HELP: &str = "\
Builds, runs and tests Aliquot.

cargo xtask demo                 a local cluster with mock GPUs, Aliquot on it, and examples; stays up (needs root)
cargo xtask demo stop            removes that cluster
cargo xtask demo --kubeconfig FILE [--image REF] [--values FILE]
                                 the same on a cluster with real GPUs: the chart with that image and those values

cargo xtask test                 everything: what CI runs (needs root)
cargo xtask test lint            format and clippy
cargo xtask test policy          licences, bans and sources of dependencies
cargo xtask test unit            tests that need no cluster
cargo xtask test go              the cluster tool
cargo xtask test fuzz            the allocator, CEL and quantities beside Kubernetes' own code, on random questions
cargo xtask test chart           the Helm chart
cargo xtask test node [NAME]     the node plugin as a process: crashes, races, upgrades (needs root)
cargo xtask test e2e [NAME]      tests on a real cluster, or those with NAME in their name
        --keep                   the e2e cluster stays up, and is used again
cargo xtask test demo            the demo: again, interrupted, killed; removes both clusters, to see what is left

cargo xtask fuzz allocator|placement|cel|quantity [--minutes N] [--seed N]
                                 the same for as long as you like, on questions that were never asked; what differs is made
                                 small and kept in test/fuzz/cases

cargo xtask bench node [--json]  memory, size and times of the node plugin, and what is aimed at (needs root)
cargo xtask bench allocator [--json]
                                 the allocator beside Kubernetes' own, in the same run
cargo xtask bench streams [--json]
                                 requests that come and go on 100 nodes: how many are served, beside first fit
cargo xtask build [--release]    the programs
cargo xtask kubectl ...          kubectl on the running cluster (the demo's, or else the tests')
cargo xtask helm ...             helm on it
cargo xtask cluster ...          its own tool: status, logs, restart, reboot, exec, ...

Environment: ALIQUOT_CACHE (built Kubernetes; ~/.cache/aliquot), ALIQUOT_STATE (clusters; /var/tmp/aliquot),
ALIQUOT_CLUSTER_NAME (which cluster kubectl, helm and cluster mean).
";

/// What was asked for.
#[derive(Debug)]
enum Command {
    Help,
    Demo,
    DemoOn(Existing),
    DemoStop,
    Test { selection: Selection, keep: bool },
    Fuzz { subject: &'static str, args: Vec<OsString> },
    BenchNode { json: bool },
    BenchAllocator { json: bool },
    BenchStreams { json: bool },
    Build { profile: &'static str },
    Kubectl(Vec<OsString>),
    Helm(Vec<OsString>),
    Cluster(Vec<OsString>),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => {
            eprintln!("interrupted");
            ExitCode::from(signals::exit_code())
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn run() -> Result<()> {
    let command = parse(std::env::args_os().skip(1).collect())?;
    if let Command::Help = command {
        print!("{HELP}");
        return Ok(());
    }
    let paths = Paths::find()?;
    match &command {
        Command::Kubectl(args) => return Err(cluster::client(&paths, "kubectl", args)?),
        Command::Helm(args) => return Err(cluster::client(&paths, "helm", args)?),
        Command::Cluster(args) => return Err(cluster::harness(&paths, args)?),
        _ => {}
    }
    signals::catch().map_err(|source| Error::Start { program: "the signal handler".to_owned(), source })?;
    match command {
        Command::Demo => demo::run(&paths),
        Command::DemoOn(existing) => demo::on_existing(&paths, &existing),
        Command::DemoStop => demo::stop(&paths),
        Command::Test { selection, keep } => suite::run(&paths, &selection, keep),
        Command::Fuzz { subject, args } => Err(fuzz::run(&paths, subject, &args)?),
        Command::BenchNode { json } => bench::node(&paths, json),
        Command::BenchAllocator { json } => bench::allocator(&paths, json),
        Command::BenchStreams { json } => bench::streams(&paths, json),
        Command::Build { profile } => build(&paths, profile),
        Command::Help | Command::Kubectl(_) | Command::Helm(_) | Command::Cluster(_) => Ok(()),
    }
}

fn build(paths: &Paths, profile: &str) -> Result<()> {
    packages::install(paths, &[packages::BUILD])?;
    let what = if profile == rust::TESTED { rust::What::Cluster } else { rust::What::Shipped };
    let products = rust::build(paths, profile, what)?;
    for program in [&products.plugin, &products.hook] {
        println!("{} {}", program.display(), rust::size(program)?);
    }
    Ok(())
}

fn parse(args: Vec<OsString>) -> Result<Command> {
    let mut args = args.into_iter();
    let Some(name) = args.next() else { return Ok(Command::Help) };
    let rest: Vec<OsString> = args.collect();
    match name.to_string_lossy().as_ref() {
        "help" | "--help" | "-h" => Ok(Command::Help),
        "demo" => parse_demo(rest),
        "test" => parse_test(rest),
        "bench" => {
            let words: Vec<_> = rest.iter().map(|word| word.to_string_lossy()).collect();
            match words.iter().map(AsRef::as_ref).collect::<Vec<_>>().as_slice() {
                ["node"] => Ok(Command::BenchNode { json: false }),
                ["node", "--json"] => Ok(Command::BenchNode { json: true }),
                ["allocator"] => Ok(Command::BenchAllocator { json: false }),
                ["allocator", "--json"] => Ok(Command::BenchAllocator { json: true }),
                ["streams"] => Ok(Command::BenchStreams { json: false }),
                ["streams", "--json"] => Ok(Command::BenchStreams { json: true }),
                _ => Err(Error::Usage("`bench` knows node, allocator and streams, with or without --json".to_owned())),
            }
        }
        "fuzz" => parse_fuzz(rest),
        "build" => match rest.as_slice() {
            [] => Ok(Command::Build { profile: rust::TESTED }),
            [flag] if flag == "--release" => Ok(Command::Build { profile: "release" }),
            [other, ..] => Err(Error::Usage(format!("`build` knows --release, not {}", other.display()))),
        },
        "kubectl" => Ok(Command::Kubectl(rest)),
        "helm" => Ok(Command::Helm(rest)),
        "cluster" => Ok(Command::Cluster(rest)),
        other => Err(Error::Usage(format!("there is no command {other}"))),
    }
}

fn parse_demo(args: Vec<OsString>) -> Result<Command> {
    if let [stop] = args.as_slice()
        && stop == "stop"
    {
        return Ok(Command::DemoStop);
    }
    let (mut kubeconfig, mut values) = (None, Values { files: Vec::new(), image: None });
    let mut args = args.into_iter();
    while let Some(flag) = args.next() {
        let flag = flag.to_string_lossy();
        let mut value = || args.next().ok_or_else(|| Error::Usage(format!("{flag} needs a value")));
        match flag.as_ref() {
            "--kubeconfig" => kubeconfig = Some(PathBuf::from(value()?)),
            "--values" => values.files.push(PathBuf::from(value()?)),
            "--image" => {
                let image = value()?.to_string_lossy().into_owned();
                if split_reference(&image).is_none() {
                    return Err(Error::Usage(format!("--image needs REPOSITORY:TAG, not {image}")));
                }
                values.image = Some(image);
            }
            other => {
                return Err(Error::Usage(format!(
                    "`demo` knows stop, --kubeconfig, --image and --values, not {other}"
                )));
            }
        }
    }
    match kubeconfig {
        Some(kubeconfig) => Ok(Command::DemoOn(Existing { kubeconfig, values })),
        None if values.image.is_some() || !values.files.is_empty() => {
            Err(Error::Usage("--image and --values go with --kubeconfig; the local cluster has its own".to_owned()))
        }
        None => Ok(Command::Demo),
    }
}

fn parse_fuzz(args: Vec<OsString>) -> Result<Command> {
    let mut args = args.into_iter();
    let name = args.next().unwrap_or_default();
    let known = || Error::Usage(format!("`fuzz` knows {}, not {}", fuzz::SUBJECTS.join(", "), name.display()));
    let subject = fuzz::SUBJECTS.iter().find(|subject| name == **subject).ok_or_else(known)?;
    let mut given = Vec::new();
    while let Some(flag) = args.next() {
        let flag = flag.to_string_lossy().into_owned();
        let is_good = |value: &str| match flag.as_str() {
            "--minutes" => Ok(value.parse().is_ok_and(|minutes: f64| (0.0..1e6).contains(&minutes))),
            "--seed" => Ok(value.parse::<u64>().is_ok()),
            other => Err(Error::Usage(format!("`fuzz` knows --minutes and --seed, not {other}"))),
        };
        let value = args.next().unwrap_or_default().to_string_lossy().into_owned();
        if !is_good(&value)? {
            return Err(Error::Usage(format!("{flag} needs a number, not {value:?}")));
        }
        given.extend([flag.into(), value.into()]);
    }
    Ok(Command::Fuzz { subject, args: given })
}

fn parse_test(args: Vec<OsString>) -> Result<Command> {
    let (flags, words): (Vec<OsString>, Vec<OsString>) =
        args.into_iter().partition(|arg| arg.to_string_lossy().starts_with("--"));
    if let Some(unknown) = flags.iter().find(|flag| *flag != "--keep") {
        return Err(Error::Usage(format!("`test` knows --keep, not {}", unknown.display())));
    }
    let mut words = words.into_iter();
    let part = words.next();
    let selection = match part.as_ref().map(|part| part.to_string_lossy()).as_deref() {
        None => Selection::All,
        Some("lint") => Selection::Lint,
        Some("policy") => Selection::Policy,
        Some("unit") => Selection::Unit,
        Some("go") => Selection::Go,
        Some("fuzz") => Selection::Fuzz,
        Some("chart") => Selection::Chart,
        Some("node") => Selection::Node(words.next()),
        Some("e2e") => Selection::E2e(words.next()),
        Some("demo") => Selection::Demo,
        Some(other) => {
            let known = "lint, policy, unit, go, fuzz, chart, node, e2e and demo";
            return Err(Error::Usage(format!("there is no part {other} of the tests; there are {known}")));
        }
    };
    if let Some(extra) = words.next() {
        return Err(Error::Usage(format!("`test` doesn't understand {}", extra.display())));
    }
    let keep = !flags.is_empty();
    if keep && !matches!(selection, Selection::All | Selection::E2e(_)) {
        return Err(Error::Usage("--keep goes with `test` and `test e2e`: only they have a cluster".to_owned()));
    }
    Ok(Command::Test { selection, keep })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command> {
        parse(line.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn commands() {
        assert!(matches!(parsed("").unwrap(), Command::Help));
        assert!(matches!(parsed("demo").unwrap(), Command::Demo));
        assert!(matches!(parsed("demo stop").unwrap(), Command::DemoStop));
        assert!(matches!(parsed("build --release").unwrap(), Command::Build { profile: "release" }));
        assert!(matches!(parsed("bench node").unwrap(), Command::BenchNode { json: false }));
        assert!(matches!(parsed("bench node --json").unwrap(), Command::BenchNode { json: true }));
        assert!(matches!(parsed("bench allocator").unwrap(), Command::BenchAllocator { json: false }));
        assert!(matches!(parsed("bench allocator --json").unwrap(), Command::BenchAllocator { json: true }));
        assert!(matches!(parsed("bench streams").unwrap(), Command::BenchStreams { json: false }));
        assert!(matches!(parsed("bench streams --json").unwrap(), Command::BenchStreams { json: true }));
        let Command::Fuzz { subject, args } = parsed("fuzz cel --seed 7 --minutes 0.5").unwrap() else {
            panic!("not fuzz")
        };
        assert_eq!((subject, args), ("cel", ["--seed", "7", "--minutes", "0.5"].map(OsString::from).to_vec()));
        let Command::DemoOn(existing) = parsed("demo --kubeconfig k --image r:1 --values v").unwrap() else {
            panic!("not on an existing cluster")
        };
        assert_eq!(existing.kubeconfig, PathBuf::from("k"));
        assert_eq!(existing.values.image.as_deref(), Some("r:1"));
        assert_eq!(existing.values.files, [PathBuf::from("v")]);
        let Command::Kubectl(args) = parsed("kubectl get pods --help").unwrap() else { panic!("not kubectl") };
        assert_eq!(args, ["get", "pods", "--help"]);
    }

    #[test]
    fn parts_of_the_tests() {
        for (line, expected, kept) in [
            ("test", Selection::All, false),
            ("test --keep", Selection::All, true),
            ("test unit", Selection::Unit, false),
            ("test fuzz", Selection::Fuzz, false),
            ("test demo", Selection::Demo, false),
            ("test node", Selection::Node(None), false),
            ("test node crash", Selection::Node(Some("crash".into())), false),
            ("test e2e", Selection::E2e(None), false),
            ("test e2e --keep one_gpu", Selection::E2e(Some("one_gpu".into())), true),
        ] {
            let Command::Test { selection, keep } = parsed(line).unwrap() else { panic!("{line} isn't a test") };
            assert_eq!((selection, keep), (expected, kept), "{line}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("dmo", "dmo"),
            ("demo --kubeconfg x", "--kubeconfg"),
            ("demo --kubeconfig", "--kubeconfig"),
            ("demo --image x:1", "--kubeconfig"),
            ("demo --kubeconfig k --image x", "REPOSITORY:TAG"),
            ("test e2", "e2"),
            ("test unit --keep", "--keep"),
            ("test e2e a b", "b"),
            ("test --kep", "--kep"),
            ("build --fast", "--fast"),
            ("fuzz", "allocator"),
            ("fuzz cell", "cell"),
            ("fuzz cel --sed 1", "--sed"),
            ("fuzz cel --seed", "--seed"),
            ("fuzz cel --seed x", "x"),
            ("fuzz cel --minutes -1", "-1"),
            ("bench", "node"),
            ("bench node --text", "--json"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(matches!(error, Error::Usage(_)) && error.to_string().contains(named), "{line}: {error}");
        }
    }
}
