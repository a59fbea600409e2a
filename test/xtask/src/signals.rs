//! Ctrl-C and friends: counted here, looked at wherever this program waits.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// From here on a signal doesn't end this process by itself.
pub(crate) fn catch() -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        for signal in signals.forever() {
            LAST.store(signal, Ordering::SeqCst);
            COUNT.fetch_add(1, Ordering::SeqCst);
        }
    });
    Ok(())
}

/// How many signals came so far.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::SeqCst)
}

/// Makes what runs in the background stop, too: the work in the foreground has failed.
pub(crate) fn give_up() {
    GIVEN_UP.store(true, Ordering::SeqCst);
}

/// Whether it is time to stop.
pub(crate) fn stop() -> bool {
    count() > 0 || GIVEN_UP.load(Ordering::SeqCst)
}

/// The error, if it is time to stop.
pub(crate) fn check() -> Result<()> {
    if stop() { Err(Error::Interrupted) } else { Ok(()) }
}

/// What a shell would report for the last signal.
pub(crate) fn exit_code() -> u8 {
    u8::try_from(128 + LAST.load(Ordering::SeqCst)).unwrap_or(1)
}
