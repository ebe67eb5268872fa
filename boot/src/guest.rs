//! A running guest: its serial line as it comes, and how the guest ended.
//!
//! Two threads read the emulator's standard output (the serial line) and standard error.
//! [`Guest::next`] returns their chunks in order and, when the serial line is closed, the end. A
//! guest that is dropped is killed.
//!
//! UEFI firmware uses the same serial line as its console, and Bochs writes to its standard output
//! too. Therefore all text before the kernel's first line is kept back. It is useful only if that
//! line never comes ([`Guest::firmware_text`]).
//!
//! QEMU's exit status is the guest's verdict. Bochs's status says nothing, so the last line of the
//! log is the verdict there.

use std::{
    fmt,
    io::{Read, Write, stdout},
    process::{ChildStdin, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    bochs,
    children::{self, Running},
    firmware::Firmware,
    prerequisites::Install,
    progress::say,
    qemu::{Machine, Serial},
};

/// Exit status of QEMU when the guest writes 0x10 to port 0xf4: the device adds a low 1 bit.
const SUCCESS: i32 = 0x10 << 1 | 1;
/// The same for 0x11.
const FAILURE: i32 = 0x11 << 1 | 1;

/// The number of output chunks that are read ahead. If they are not read, the guest finds a
/// terminal that pauses.
const UNREAD_CHUNKS: usize = 4;

/// The text before the verdict in the last line of the log.
const VERDICT: &str = "Power off: ";

/// How a guest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest said that all went well.
    Success,
    /// The guest said that something failed; its log has the reason.
    Failure,
    /// The machine was reset, or switched off without a verdict.
    Reset,
    /// The emulator itself failed or was killed; the text says which and how.
    Emulator(String),
}

/// The emulator that runs the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Emulator {
    Qemu,
    Bochs,
}

impl End {
    /// `stderr` is the emulator's output; `last_line` is the last line of the guest's log.
    fn new(emulator: Emulator, status: ExitStatus, stderr: &str, last_line: &str) -> Self {
        let failed = |name, message: Option<&str>| {
            Self::Emulator(match message {
                Some(message) => format!("{name} failed: {status}, {}", message.trim()),
                None => format!("{name} failed: {status}"),
            })
        };
        match emulator {
            Emulator::Qemu => match status.code() {
                Some(SUCCESS) => Self::Success,
                Some(FAILURE) => Self::Failure,
                Some(0) => Self::Reset,
                _ if let Some(register) = refused_register(stderr) => Self::Emulator(format!(
                    "KVM on this host cannot set the model-specific register {register}, which \
                     QEMU wants for `-cpu host`: \
                     leave `--accel kvm` out, or bring QEMU and the host's kernel up to date"
                )),
                _ => failed("QEMU", stderr.lines().rfind(|line| !line.trim().is_empty())),
            },
            // Whatever the verdict, it exits with 1.
            Emulator::Bochs => match last_line.split_once(VERDICT).map(|(_, word)| word) {
                Some("success") => Self::Success,
                Some("failure") => Self::Failure,
                _ if stderr.contains(bochs::TRIPLE_FAULT) => Self::Reset,
                _ => failed(
                    "Bochs",
                    stderr
                        .split_once(bochs::LAST_WORDS)
                        .and_then(|(_, message)| message.trim_start().lines().next()),
                ),
            },
        }
    }
}

/// The model-specific register that KVM has refused. QEMU names it and then fails an assertion.
fn refused_register(stderr: &str) -> Option<&str> {
    let (_, rest) = stderr.split_once("failed to set MSR ")?;
    rest.split_whitespace().next()
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("the guest ended well"),
            Self::Failure => f.write_str("the guest failed: see its log"),
            Self::Reset => f.write_str(
                "the guest ended without a verdict: a triple fault, or a reset or power-off by \
                 itself",
            ),
            Self::Emulator(how) => f.write_str(how),
        }
    }
}

/// An event of a guest.
#[derive(Debug)]
pub enum Event {
    /// It wrote this to its serial line.
    Output(Vec<u8>),
    /// It ended.
    End(End),
    /// It did neither until the deadline.
    Deadline,
}

/// A guest whose serial line we read.
#[derive(Debug)]
pub struct Guest {
    emulator: Emulator,
    process: Running,
    /// The other end of its serial line.
    input: Option<ChildStdin>,
    /// The firmware's text, as long as the kernel has written nothing.
    firmware_text: Option<Vec<u8>>,
    log: LastLine,
    output: Receiver<Vec<u8>>,
    stderr: Option<JoinHandle<String>>,
}

/// The last line of a log. Lines of the log begin with a time stamp in brackets; others are
/// ignored.
#[derive(Debug, Default)]
struct LastLine {
    line: Vec<u8>,
    partial: Vec<u8>,
}

impl LastLine {
    fn extend(&mut self, output: &[u8]) {
        for piece in output.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.partial);
                if line.starts_with(b"[") {
                    self.line = line;
                }
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.line).trim_end().into()
    }
}

impl Guest {
    /// Starts `machine`. The calling thread must outlive the guest (see `children`).
    pub fn start(machine: &Machine, install: Install) -> Result<Self> {
        assert_eq!(machine.serial, Serial::Output, "a guest is read, not shown");
        let has_console = machine.firmware == Firmware::Uefi;
        Self::spawn(Emulator::Qemu, machine.command(install)?, has_console)
    }

    /// Starts a machine in Bochs. The calling thread must outlive the guest.
    pub fn start_in_bochs(machine: &bochs::Machine, install: Install) -> Result<Self> {
        let mut guest = Self::spawn(Emulator::Bochs, machine.command(install)?, true)?;
        // If it has ended already, that is reported like any end.
        let _ = guest.type_text(bochs::GO);
        // When there is nothing left to run, Bochs's debugger reads the end of its input and quits.
        guest.input = None;
        Ok(guest)
    }

    /// `has_console`: there may be text before the kernel's first line.
    fn spawn(emulator: Emulator, mut command: Command, has_console: bool) -> Result<Self> {
        let process = children::spawn(
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        )
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let input = process.take_stdin();
        let mut stdout = process.take_stdout().expect("piped above");
        let mut stderr = process.take_stderr().expect("piped above");
        let (sender, output) = mpsc::sync_channel(UNREAD_CHUNKS);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            // An error on a pipe, like its end, means that there is nothing more to read.
            while let Ok(length @ 1..) = stdout.read(&mut chunk) {
                if sender.send(chunk[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let stderr = thread::spawn(move || {
            let mut text = Vec::new();
            // As above: there is only the output that was read so far.
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self {
            emulator,
            process,
            input,
            firmware_text: has_console.then(Vec::new),
            log: LastLine::default(),
            output,
            stderr: Some(stderr),
        })
    }

    /// Waits for the guest's next event until `deadline`. [`Event::End`] repeats.
    pub fn next(&mut self, deadline: Option<Instant>) -> Result<Event> {
        loop {
            let event = self.next_raw(deadline)?;
            let Event::Output(mut output) = event else {
                return Ok(event);
            };
            if let Some(text) = &mut self.firmware_text {
                text.extend(output);
                let Some(start) = first_log_line(text) else {
                    continue;
                };
                output = text.split_off(start);
                self.firmware_text = None;
            }
            self.log.extend(&output);
            return Ok(Event::Output(output));
        }
    }

    /// The right to kill it, for another thread.
    pub fn killer(&self) -> children::Killer {
        self.process.killer()
    }

    /// Types `text` at the serial line. Waits while QEMU takes nothing.
    ///
    /// # Errors
    /// Those of the pipe to QEMU, once that has ended.
    pub fn type_text(&mut self, text: &str) -> Result<()> {
        let input = self.input.as_mut().context("the guest has no input")?;
        input
            .write_all(text.as_bytes())
            .context("cannot type at the guest's serial line")
    }

    /// Waits until `deadline` for the guest to end, without reading its output. Returns false if it
    /// has not ended.
    pub fn ends_unheard(&self, deadline: Instant) -> Result<bool> {
        while Instant::now() < deadline {
            let ended = self.process.has_ended();
            if ended.context("cannot wait for the emulator")? {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(false)
    }

    /// Returns the firmware's text on its console, without control characters. It is empty once the
    /// kernel has written.
    pub fn firmware_text(&self) -> String {
        let text = String::from_utf8_lossy(self.firmware_text.as_deref().unwrap_or_default());
        let mut lines = String::new();
        for line in text.lines() {
            // Cursor movements and the like: ESC [ parameters letter.
            let mut pieces = line.split('\x1b');
            let first = pieces.next().unwrap_or_default();
            let rest = pieces.map(|piece| {
                piece
                    .split_once(|c: char| c.is_ascii_alphabetic())
                    .map_or("", |(_, text)| text)
            });
            let line: String = std::iter::once(first).chain(rest).collect();
            if !line.trim().is_empty() {
                lines.push_str(line.trim());
                lines.push('\n');
            }
        }
        lines
    }

    fn next_raw(&mut self, deadline: Option<Instant>) -> Result<Event> {
        let output = match deadline {
            None => self
                .output
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => {
                let rest = deadline.saturating_duration_since(Instant::now());
                if rest.is_zero() {
                    // Even if there is more to read: a flood of messages must end.
                    return Ok(Event::Deadline);
                }
                self.output.recv_timeout(rest)
            }
        };
        Ok(match output {
            Ok(output) => Event::Output(output),
            Err(RecvTimeoutError::Timeout) => Event::Deadline,
            Err(RecvTimeoutError::Disconnected) => {
                let status = self
                    .process
                    .wait()
                    .context("cannot wait for the emulator")?;
                let stderr = self.stderr.take().map(JoinHandle::join);
                let stderr = stderr.and_then(Result::ok).unwrap_or_default();
                Event::End(End::new(self.emulator, status, &stderr, &self.log.text()))
            }
        })
    }
}

/// Returns where the first line of the kernel's log starts. It begins with a time stamp in
/// brackets.
fn first_log_line(text: &[u8]) -> Option<usize> {
    let starts = text
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1);
    std::iter::once(0)
        .chain(starts)
        .find(|start| text.get(*start) == Some(&b'['))
}

/// Runs `machine` with its serial line on our standard output. Returns whether the guest ended
/// well.
///
/// # Errors
/// Fails for any other end, and if the guest does not end within `timeout`.
pub fn run(machine: &Machine, install: Install, timeout: Option<Duration>) -> Result<()> {
    if machine.serial == Serial::Terminal {
        return run_on_terminal(machine, install);
    }
    let mut guest = Guest::start(machine, install)?;
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut silent = true;
    loop {
        let event = guest.next(deadline)?;
        if !matches!(event, Event::Output(_)) {
            eprint!("{}", guest.firmware_text());
        }
        match event {
            Event::Output(output) => {
                silent = false;
                let mut stdout = stdout().lock();
                stdout
                    .write_all(&output)
                    .and_then(|()| stdout.flush())
                    .context("cannot write the guest's log to standard output")?;
            }
            Event::End(End::Success) => return Ok(()),
            Event::End(end @ (End::Failure | End::Reset)) if silent => {
                bail!("{end}; it printed nothing")
            }
            Event::End(end) => bail!("{end}"),
            Event::Deadline => {
                let seconds = timeout.unwrap_or_default().as_secs();
                bail!(
                    "the guest {} within {seconds} s; --timeout sets another limit",
                    if silent {
                        "printed nothing"
                    } else {
                        "did not end"
                    }
                );
            }
        }
    }
}

fn run_on_terminal(machine: &Machine, install: Install) -> Result<()> {
    let mut command = machine.command(install)?;
    say(
        "the guest has the terminal now: `poweroff` ends it, Ctrl-A X quits at once, \
                 Ctrl-A H helps",
    );
    let process = children::spawn(command.stderr(Stdio::piped())).context("cannot start QEMU")?;
    let mut stderr = process.take_stderr().expect("piped above");
    // Shown as it comes; read as well, as it says why QEMU has failed.
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut chunk) {
        text.extend(&chunk[..length]);
        // Output that cannot be shown is lost.
        let _ = std::io::stderr().write_all(&chunk[..length]);
    }
    let status = process.wait().context("cannot wait for QEMU")?;
    let text = String::from_utf8_lossy(&text);
    match End::new(Emulator::Qemu, status, &text, "") {
        End::Success => Ok(()),
        end => bail!("{end}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn the_log_starts_at_the_first_line_with_a_stamp() {
        assert_eq!(first_log_line(b"[    0.000000] a"), Some(0));
        assert_eq!(first_log_line(b"\x1b[2J[x\r\n[    0.0"), Some(8));
        assert_eq!(first_log_line(b"\x1b[2JBdsDxe: loading\r\n"), None);
    }

    /// Otherwise a guest that floods its log would never be found to be late.
    #[test]
    fn a_deadline_that_has_passed_comes_before_what_is_still_to_read() {
        // Writes nothing and lives until its input is closed.
        let mut guest = Guest::spawn(Emulator::Qemu, Command::new("cat"), false).unwrap();
        let (sender, output) = mpsc::channel();
        guest.output = output;
        for _ in 0..2 {
            sender.send(b"more\n".to_vec()).unwrap();
        }
        let event = guest.next(None).unwrap();
        assert!(matches!(event, Event::Output(text) if text == b"more\n"));
        let event = guest.next(Some(Instant::now())).unwrap();
        assert!(matches!(event, Event::Deadline), "{event:?}");
    }

    #[test]
    fn exit_statuses_of_qemu_are_told_apart() {
        let end =
            |status, stderr| End::new(Emulator::Qemu, ExitStatus::from_raw(status), stderr, "");
        let exit = |code: i32, stderr| end(code << 8, stderr);
        assert_eq!(exit(33, ""), End::Success);
        assert_eq!(exit(35, "noise"), End::Failure);
        assert_eq!(exit(0, ""), End::Reset);
        assert_eq!(
            exit(1, "warning\nqemu: no such disk\n\n"),
            End::Emulator("QEMU failed: exit status: 1, qemu: no such disk".into())
        );
        assert_eq!(
            end(9, ""),
            End::Emulator("QEMU failed: signal: 9 (SIGKILL)".into())
        );
    }

    #[test]
    fn the_last_line_of_the_log_is_the_verdict_in_bochs() {
        let end = |log: &[&str], stderr| {
            let mut last = LastLine::default();
            log.iter().for_each(|piece| last.extend(piece.as_bytes()));
            End::new(
                Emulator::Bochs,
                ExitStatus::from_raw(1 << 8),
                stderr,
                &last.text(),
            )
        };
        let success = "[    1.234567] Power off: success\n";
        assert_eq!(end(&[success], ""), End::Success);
        let pieces = ["[    1.2] Power off: fai", "lure\n(0).[12] jmp", ".\n"];
        assert_eq!(end(&pieces, ""), End::Failure);
        let shutdown = "e[CPU0  ] exception(): 3rd (13) exception with no resolution";
        assert_eq!(end(&[success, "[    1.3] more\n"], shutdown), End::Reset);
        let message =
            "====\nBochs is exiting with the following message:\n[IMG   ] no disk\n====\nbye";
        assert_eq!(
            end(&[], message),
            End::Emulator("Bochs failed: exit status: 1, [IMG   ] no disk".into())
        );
    }
}
