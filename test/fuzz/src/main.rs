//! Compares Aliquot with Kubernetes' own code on random questions: `cargo xtask fuzz`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_fuzz::allocator::Allocator;
use aliquot_fuzz::cel::Cel;
use aliquot_fuzz::oracle::Oracle;
use aliquot_fuzz::placement::Placement;
use aliquot_fuzz::quantity::Quantities;
use aliquot_fuzz::run::{Subject, Until, run};
use clap::{Parser, ValueEnum};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Compares Aliquot with Kubernetes' own code on random questions.
#[derive(Parser)]
struct Args {
    /// What to compare
    what: What,
    /// The program that answers as Kubernetes does: one of test/cluster/oracle, built
    #[arg(long)]
    oracle: PathBuf,
    /// How long to go on
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// How many questions, whatever the time
    #[arg(long)]
    count: Option<u64>,
    /// The first question, the others are those after it; another one each time if it isn't given
    #[arg(long)]
    seed: Option<u64>,
    /// It is an error if more than this many per cent of the questions have no answer on one of the sides
    #[arg(long)]
    most_skipped: Option<f64>,
    /// Where problems of the allocator that differ are kept
    #[arg(long)]
    cases: Option<PathBuf>,
    /// Only print the first question
    #[arg(long)]
    print: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Allocator,
    Placement,
    Cel,
    Quantity,
}

fn main() -> ExitCode {
    compare(Args::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn compare(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let subject: Box<dyn Subject> = match args.what {
        What::Allocator => Box::new(Allocator::new(args.cases)),
        What::Placement => Box::new(Placement::new()),
        What::Cel => Box::new(Cel::new()?),
        What::Quantity => Box::new(Quantities),
    };
    let seed = match args.seed {
        Some(seed) => seed,
        // So far apart that what one run asks, the next doesn't.
        None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() * 100_000,
    };
    if args.print {
        println!("{}", subject.question(seed));
        return Ok(ExitCode::SUCCESS);
    }
    let devices = concat!(env!("CARGO_MANIFEST_DIR"), "/../../controller/cel/tests/expressions/devices.json").as_ref();
    let devices: &[&Path] = if args.what == What::Cel { &[devices] } else { &[] };
    let mut oracle = Oracle::start(&args.oracle, devices)?;
    let until = args.count.map_or(Until::Time(Duration::try_from_secs_f64(args.minutes * 60.0)?), Until::Count);
    let name = args.what.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    println!("{name}, from seed {seed} on");
    let tally = run(&*subject, &mut oracle, seed, until, &stop, &mut |text| println!("{text}"))?;
    println!("{tally}");
    if tally.was_stopped() {
        println!("stopped by a signal");
    }
    if tally.different > 0 {
        println!("they disagree");
        return Ok(ExitCode::FAILURE);
    }
    let skipped = tally.skipped_percent();
    if args.most_skipped.is_some_and(|most| skipped > most) {
        println!("{skipped:.2} % of the questions have no answer on one of the sides: too many");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
