//! What is wrong with functions, on purpose.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::time::Duration;

use crate::abi::{In, Out, TextIn, TextOut};
use crate::exports::handle_by_text;
use crate::handle::Handle;
use crate::library::{Library, Session, library, open_state};
use crate::state::{BLOCKS, FAILS, Reader, State};

/// What a function is called with, as far as it can tell the GPU that the call is about.
pub(crate) enum Subject<'a> {
    Nothing,
    Handle(Handle),
    Number(c_uint),
    Text(&'a str),
}

/// Something that a function is called with.
pub(crate) trait Argument {
    fn subject(&self) -> Subject<'_> {
        Subject::Nothing
    }
}

impl Argument for Handle {
    fn subject(&self) -> Subject<'_> {
        Subject::Handle(*self)
    }
}

impl Argument for c_uint {
    fn subject(&self) -> Subject<'_> {
        Subject::Number(*self)
    }
}

impl Argument for TextIn {
    fn subject(&self) -> Subject<'_> {
        self.get().map_or(Subject::Nothing, Subject::Text)
    }
}

impl Argument for c_int {}
impl Argument for u64 {}
impl Argument for TextOut {}
impl<T> Argument for In<T> {}
impl<T> Argument for Out<T> {}

/// The place of the GPU that a call is about.
fn gpu(session: &Session, function: &str, arguments: &[&dyn Argument]) -> Option<usize> {
    let asks_for_handle = function.starts_with("nvmlDeviceGetHandleBy");
    arguments.iter().find_map(|argument| match argument.subject() {
        Subject::Handle(handle) => session.place_of(handle),
        Subject::Number(index) if asks_for_handle => session.place(index).ok(),
        Subject::Text(text) if asks_for_handle => session.place_of(handle_by_text(session, text).ok()?),
        Subject::Number(_) | Subject::Text(_) | Subject::Nothing => None,
    })
}

/// What becomes of a call before it begins.
enum Fate {
    Goes,
    Fails(c_uint),
    Waits(Duration),
    /// Until the state changes.
    Blocks(Arc<Reader>, u32),
}

/// Lets a call wait, or fail. 0 if it shall begin.
pub(crate) fn meet(function: &str, arguments: &[&dyn Argument]) -> c_uint {
    loop {
        // The library isn't locked while a call waits: other calls go on.
        let fate = fate(&mut library(), function, arguments);
        match fate {
            Fate::Goes => return 0,
            Fate::Fails(code) => return code,
            Fate::Waits(time) => {
                std::thread::sleep(time);
                return 0;
            }
            Fate::Blocks(reader, sequence) => reader.wait(sequence, Duration::from_mins(1)),
        }
    }
}

fn fate(library: &mut Library, function: &str, arguments: &[&dyn Argument]) -> Fate {
    let Some(session) = &mut library.session else {
        // The first initialisation, or a call that will be told that there was none.
        let state = function.starts_with("nvmlInit").then(|| open_state(&mut library.path));
        let Some(Ok((path, reader, sequence, state))) = state else { return Fate::Goes };
        let (fate, place) = look(&state, function, None, &Arc::new(reader), sequence);
        if let Some(place) = place {
            count(&path, place);
        }
        return fate;
    };
    if session.refresh().is_err() {
        return Fate::Goes;
    }
    let gpu = gpu(session, function, arguments);
    let (fate, place) = look(session.state(), function, gpu, &session.reader, session.sequence);
    if let Some(place) = place {
        count(&session.path, place);
    }
    fate
}

/// What becomes of a call, and the place of the fault if it is to be counted.
fn look(
    state: &State,
    function: &str,
    gpu: Option<usize>,
    reader: &Arc<Reader>,
    sequence: u32,
) -> (Fate, Option<usize>) {
    let Some((place, fault)) = state.fault(function, gpu) else { return (Fate::Goes, None) };
    let counted = (fault.calls != crate::state::NONE).then_some(place);
    match fault.kind {
        FAILS => (Fate::Fails(fault.value), counted),
        BLOCKS => (Fate::Blocks(Arc::clone(reader), sequence), None),
        _ => (Fate::Waits(Duration::from_millis(fault.value.into())), counted),
    }
}

/// One call less. A process that may not write doesn't count.
fn count(path: &std::path::Path, place: usize) {
    if let Ok(mut writer) = crate::state::Writer::open(path) {
        let _ = writer.update(|state| state.faults[place].calls = state.faults[place].calls.saturating_sub(1));
    }
}
