//! `cargo xtask test`: all that must hold before a change is good, cheapest first.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::clients::{Clients, NAMESPACE, Values};
use crate::cluster::{self, Cluster, E2E};
use crate::demo::state_of;
use crate::error::{Error, Result};
use crate::kubernetes::{self, Background, go};
use crate::paths::{Paths, read};
use crate::policy;
use crate::process::{Program, step};
use crate::progress::clock;
use crate::rust::{self, Products, TESTED, What, cargo, integration_tests};
use crate::table::render;
use crate::{fuzz, images, packages};

/// The packages of the tests that need more than cargo, and those tests: on the cluster; with Helm; of this program; of the node plugin.
const NEEDY_PACKAGES: [&str; 2] = ["aliquot-e2e", "aliquot-rig"];
const E2E_TEST: &str = "e2e";
const CHART_TEST: &str = "chart";
const DEMO_TEST: &str = "demo";
const NODE_TEST: &str = "node";

/// What to test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Lint,
    Policy,
    Unit,
    Go,
    Fuzz,
    Chart,
    /// Those whose name has this text in it.
    Node(Option<OsString>),
    /// Those whose name has this text in it.
    E2e(Option<OsString>),
    Demo,
}

/// What was tested, how long it took, and how many tests there were.
struct Report<'a> {
    paths: &'a Paths,
    rows: Vec<Vec<String>>,
    passed: usize,
    failed: usize,
}

/// Tests what is selected. `keep` leaves the cluster of the e2e tests up.
pub(crate) fn run(paths: &Paths, selection: &Selection, keep: bool) -> Result<()> {
    let started = Instant::now();
    let mut report = Report { paths, rows: Vec::new(), passed: 0, failed: 0 };
    let result = match selection {
        Selection::All => report.all(keep),
        Selection::Lint => report.part("lint", |report| report.lint()),
        Selection::Policy => report.part("policy", |report| policy::check(report.paths)),
        Selection::Unit => report.part("unit", Report::unit),
        Selection::Go => report.part("go", Report::go),
        Selection::Fuzz => report.part("fuzz", |report| fuzz::test(report.paths)),
        Selection::Chart => report.part("chart", Report::chart),
        Selection::Node(filter) => {
            report.part("packages", |report| packages::install(report.paths, &[packages::BUILD, packages::NODE]))?;
            report.part("node", |report| report.node(filter.as_ref()))
        }
        Selection::E2e(filter) => {
            report.part("packages", |report| packages::install(report.paths, &[packages::BUILD, packages::CLUSTER]))?;
            report.part("e2e", |report| report.e2e(filter.as_ref(), keep))
        }
        Selection::Demo => report.part("demo", Report::demo),
    };
    println!("\n{}", render(&["PART", "TIME", "TESTS", ""], &report.rows).trim_end());
    println!("total {}", clock(started.elapsed()));
    if report.passed + report.failed > 0 {
        println!("{} passed, {} failed", report.passed, report.failed);
    }
    result
}

impl Report<'_> {
    fn all(&mut self, keep: bool) -> Result<()> {
        let needed = [packages::BUILD, packages::CLUSTER, packages::NODE];
        self.part("packages", |report| packages::install(report.paths, &needed))?;
        self.part("format", |report| report.format())?;
        let background = Background::start(self.paths)?;
        self.part("policy", |report| policy::check(report.paths))?;
        self.part("lint", |report| report.clippy())?;
        self.part("unit", Self::unit)?;
        self.part("kubernetes", |report| match background {
            Some(background) => background.finish(report.paths).map(drop),
            None => kubernetes::build(report.paths).map(drop),
        })?;
        self.part("go", Self::go)?;
        self.part("fuzz", |report| fuzz::test(report.paths))?;
        self.part("chart", Self::chart)?;
        self.part("node", |report| report.node(None))?;
        self.part("demo", Self::demo)?;
        self.part("e2e", |report| report.e2e(None, keep))
    }

    fn part(&mut self, name: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (started, tests) = (Instant::now(), self.passed + self.failed);
        let result = work(self);
        let tests = self.passed + self.failed - tests;
        self.rows.push(vec![
            name.to_owned(),
            clock(started.elapsed()),
            if tests > 0 { tests.to_string() } else { String::new() },
            if result.is_ok() { String::new() } else { "FAILED".to_owned() },
        ]);
        result
    }

    fn lint(&self) -> Result<()> {
        self.format()?;
        self.clippy()
    }

    fn format(&self) -> Result<()> {
        step("check the format", &self.paths.log("format"), |step| {
            step.run(&cargo(self.paths).args(["fmt", "--all", "--check"]))?;
            let gofmt = Program::new("gofmt").args(["-l", "."]).dir(&self.paths.harness());
            let files = step.output(&gofmt)?;
            if files.trim().is_empty() {
                return Ok(());
            }
            Err(Error::Refused(format!("not as gofmt writes it, in test/cluster: {}", files.trim().replace('\n', " "))))
        })
    }

    fn clippy(&self) -> Result<()> {
        step("lint (clippy)", &self.paths.log("clippy"), |step| {
            // Also finds out whether Cargo.lock fits.
            let clippy = ["clippy", "--locked", "--workspace", "--all-targets", "--profile", TESTED];
            step.run(&cargo(self.paths).args(clippy).args(["--", "-D", "warnings"]))
        })
    }

    /// Unit and property tests, and the integration tests that need no cluster.
    fn unit(&mut self) -> Result<()> {
        rust::build(self.paths, TESTED, What::Everything)?;
        self.cargo_test("unit tests", "unit", &["--lib".into(), "--bins".into()], |program| program)?;
        let tests = integration_tests(self.paths)?;
        let tests: Vec<String> = tests
            .into_iter()
            .filter(|(package, _)| !NEEDY_PACKAGES.contains(&package.as_str()))
            .map(|(_, name)| name)
            .collect();
        if !tests.is_empty() {
            self.cargo_test("integration tests", "integration", &only(&tests), |program| program)?;
        }
        self.cargo_test("examples in the documentation", "doc", &["--doc".into()], |program| program)
    }

    fn go(&mut self) -> Result<()> {
        let log = self.paths.log("go");
        let result = step("vet and test the cluster tool", &log, |step| {
            // All but the program that is Kubernetes: that takes a quarter of an hour, and is somebody else's.
            let list = step.output(&go(self.paths).args(["list", "./..."]))?;
            let ours: Vec<&str> = list.lines().filter(|package| !package.ends_with("/kube")).collect();
            step.run(&go(self.paths).arg("vet").args(&ours))?;
            step.run(&go(self.paths).args(["test", "-v"]).args(&ours))
        });
        self.count(&log);
        result
    }

    fn chart(&mut self) -> Result<()> {
        let kubernetes = kubernetes::build(self.paths)?;
        self.cargo_test("chart tests", "chart", &only(&[CHART_TEST]), |program| {
            program.env("ALIQUOT_KUBE", kubernetes.join("kube"))
        })
    }

    fn node(&mut self, filter: Option<&OsString>) -> Result<()> {
        let kubernetes = kubernetes::build(self.paths)?;
        let products = rust::build(self.paths, TESTED, What::Everything)?;
        let mut args = only(&[NODE_TEST]);
        args.push("--".into());
        args.extend(filter.cloned());
        let before = self.passed;
        self.cargo_test("tests of the node plugin", "node", &args, |program| {
            program.envs(node_environment(&kubernetes, &products))
        })?;
        self.found_any(filter, before)
    }

    /// A name that fits no test is a mistake.
    fn found_any(&self, filter: Option<&OsString>, before: usize) -> Result<()> {
        match filter {
            Some(name) if self.passed == before => {
                Err(Error::Refused(format!("no test of this part has {} in its name", name.display())))
            }
            _ => Ok(()),
        }
    }

    fn e2e(&mut self, filter: Option<&OsString>, keep: bool) -> Result<()> {
        let paths = self.paths;
        let kubernetes = kubernetes::build(paths)?;
        let tool = cluster::tool(paths)?;
        let products = rust::build(paths, TESTED, What::Everything)?;
        let images = images::build(paths, &tool, &products)?;
        let cluster = Cluster::new(paths, &E2E, &tool);
        let _lock = cluster.lock()?;
        if !keep {
            cluster.down()?;
        }
        let clients = Clients::of_build(&kubernetes, &cluster.kubeconfig());
        let result = (|| {
            cluster.up(&kubernetes, &products.mock)?;
            cluster.load(&images)?;
            let values = Values { files: vec![paths.mock_values()], image: Some(images.plugin.reference.clone()) };
            clients.install_chart(paths, &paths.log("e2e-chart"), &values)?;
            clients.wait_for_devices(&paths.log("e2e-devices"), E2E.machines.len())?;
            let mut args = only(&[E2E_TEST]);
            args.push("--".into());
            args.extend(filter.cloned());
            let kubeconfig = cluster.kubeconfig();
            let before = self.passed;
            self.cargo_test("end-to-end tests", "e2e", &args, |program| {
                program
                    .env("KUBECONFIG", kubeconfig)
                    .env("ALIQUOT_CLUSTER", &tool)
                    .env("ALIQUOT_CLUSTER_NAME", E2E.name)
                    .env("ALIQUOT_KUBE", kubernetes.join("kube"))
                    .env("ALIQUOT_MOCK", &products.mock)
                    .env("ALIQUOT_IMAGE", &images.plugin.reference)
                    .env("ALIQUOT_WORKLOAD_IMAGE", &images.workload.reference)
            })?;
            self.found_any(filter, before)
        })();
        if let Err(error) = &result
            && !matches!(error, Error::Interrupted | Error::Refused(_))
        {
            save_logs(paths, &cluster, &clients)?;
        }
        if keep {
            let name = E2E.name;
            eprintln!("     the cluster {name} stays up; `cargo xtask cluster down --name {name}` removes it");
            return result;
        }
        result.and(cluster.down())
    }

    fn demo(&mut self) -> Result<()> {
        let xtask = std::env::current_exe().map_err(Error::io("find", Path::new("this program")))?;
        let tool = cluster::tool(self.paths)?;
        let others = Cluster::new(self.paths, &E2E, &tool);
        let _lock = others.lock()?;
        others.down()?;
        rust::build(self.paths, TESTED, What::Everything)?;
        self.cargo_test("tests of the demo", "demo", &only(&[DEMO_TEST]), |program| program.env("ALIQUOT_XTASK", xtask))
    }

    /// `cargo test` of the workspace; the tests are counted.
    fn cargo_test(
        &mut self,
        title: &str,
        log: &str,
        args: &[OsString],
        with: impl FnOnce(Program) -> Program,
    ) -> Result<()> {
        let log = self.paths.log(log);
        let program = with(cargo(self.paths).args(["test", "--workspace", "--profile", TESTED]).args(args));
        let result = step(title, &log, |step| step.run(&program));
        self.count(&log);
        result
    }

    fn count(&mut self, log: &Path) {
        // A log that isn't there has no tests in it.
        let (passed, failed) = count(&read(log).unwrap_or_default());
        self.passed += passed;
        self.failed += failed;
    }
}

/// What `test/rig` asks for.
pub(crate) fn node_environment(kubernetes: &Path, products: &Products) -> [(&'static str, PathBuf); 4] {
    [
        ("ALIQUOT_KUBE", kubernetes.join("kube")),
        ("ALIQUOT_PLUGIN", products.plugin.clone()),
        ("ALIQUOT_HOOK", products.hook.clone()),
        ("ALIQUOT_MOCK", products.mock.clone()),
    ]
}

/// Cargo's arguments for these integration tests.
fn only<S: AsRef<str>>(tests: &[S]) -> Vec<OsString> {
    tests.iter().flat_map(|name| ["--test".into(), name.as_ref().into()]).collect()
}

/// How many tests passed and failed, by what cargo and go print.
fn count(log: &str) -> (usize, usize) {
    let (mut passed, mut failed) = (0, 0);
    for line in log.lines() {
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |unit: &str| -> usize {
                let words: Vec<&str> = result.split_whitespace().collect();
                let at = words.iter().position(|word| *word == unit);
                at.and_then(|at| words.get(at.checked_sub(1)?)?.parse().ok()).unwrap_or(0)
            };
            passed += number("passed;");
            failed += number("failed;");
        }
        passed += usize::from(line.starts_with("--- PASS: "));
        failed += usize::from(line.starts_with("--- FAIL: "));
    }
    (passed, failed)
}

/// Keeps what may explain a failure, since the cluster goes away, and shows the most likely part.
fn save_logs(paths: &Paths, cluster: &Cluster, clients: &Clients) -> Result<()> {
    let dir = paths.target.join("e2e-logs");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(Error::io("remove", &dir))?;
    }
    fs::create_dir_all(&dir).map_err(Error::io("make", &dir))?;
    step("save the cluster's logs", &paths.log("e2e-logs"), |step| {
        for file in cluster.log_files() {
            let parts: Vec<_> = file.iter().rev().take(3).map(|part| part.to_string_lossy()).collect();
            let copy = dir.join(parts.into_iter().rev().collect::<Vec<_>>().join("-"));
            fs::copy(&file, &copy).map_err(Error::io("copy", &file))?;
        }
        for what in ["pods", "events", "resourceclaims", "resourceslices", "nodes"] {
            // The API server may be what failed; the logs are kept all the same.
            let text = step.output(&clients.kubectl(["get", what, "--all-namespaces", "--output", "yaml"]));
            let copy = dir.join(format!("{what}.yaml"));
            fs::write(&copy, text.unwrap_or_else(|error| error.to_string())).map_err(Error::io("write", &copy))?;
        }
        step.pause(Duration::ZERO, "")
    })?;
    let state = state_of(clients, NAMESPACE);
    let copy = dir.join("summary.txt");
    fs::write(&copy, &state).map_err(Error::io("write", &copy))?;
    eprintln!("{state}\n\nmore in {}", dir.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_cargo_and_go_are_counted() {
        let log = "test a ... ok\n\
                   test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
                   test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n\
                   --- PASS: TestUp (0.00s)\n    --- PASS: TestUp/one (0.00s)\n--- FAIL: TestDown (0.00s)\n";
        assert_eq!(count(log), (5, 3));
    }

    #[test]
    fn a_test_is_named_to_cargo() {
        assert_eq!(only(&["a", "b"]), ["--test", "a", "--test", "b"]);
    }
}
