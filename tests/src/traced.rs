//! A kernel that runs, and a socket on which the command `trace` comes to it.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use boot::{
    guest::{End, Event, Guest},
    image::Kernel,
    prerequisites::Install,
    qemu::Machine,
};

use crate::{
    processors::{self, Taken},
    tracer::program,
};

/// A path in the file system that no other test has, for a socket of that name.
pub fn free_path(name: &str) -> PathBuf {
    // A socket's address has little room, so it cannot lie among the artifacts.
    let path = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
    // It is there only if an earlier process of this number has left it.
    let _ = fs::remove_file(&path);
    path
}

/// How long such a kernel may say nothing that a test waits for.
const PATIENCE: Duration = Duration::from_secs(600);

/// A kernel that waits for tracers. All functions panic if it does not do as it should.
pub struct Traced {
    /// What runs.
    pub kernel: Kernel,
    /// Where tracers come.
    pub socket: PathBuf,
    guest: Guest,
    log: String,
    _processors: Taken,
}

impl Traced {
    /// Boots `kernel` on this machine, up to its words "a tracer may come". A test has a `name` of
    /// its own.
    pub fn boot(kernel: Kernel, mut machine: Machine, name: &str) -> Self {
        let socket = free_path(name);
        machine.listen_at(&socket);
        // All of its CPUs are busy all the time.
        let taken = processors::for_guest(4 * machine.cpus);
        let guest = Guest::start(&machine, Install::Allowed).unwrap();
        let mut traced = Self {
            kernel,
            socket,
            guest,
            log: String::new(),
            _processors: taken,
        };
        traced.read_until("a tracer may come");
        traced
    }

    fn read_until(&mut self, words: &str) {
        let deadline = Some(Instant::now() + PATIENCE);
        while !self.log.contains(words) {
            match self.guest.next(deadline).unwrap() {
                Event::Output(output) => self.log += &String::from_utf8_lossy(&output),
                Event::End(_) => panic!("it has ended: {}", self.log),
                Event::Deadline => panic!("it does not say {words:?}: {}", self.log),
            }
        }
    }

    /// Its end, after all of its log.
    pub fn end(mut self) -> (End, String) {
        let deadline = Some(Instant::now() + PATIENCE);
        loop {
            match self.guest.next(deadline).unwrap() {
                Event::Output(output) => self.log += &String::from_utf8_lossy(&output),
                Event::End(end) => return (end, self.log),
                Event::Deadline => panic!("it does not end: {}", self.log),
            }
        }
    }

    /// `trace`, attached to it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        let address = format!("unix:{}", self.socket.display());
        command.args(["--connect", &address, "--elf"]);
        command.arg(&self.kernel.debug_elf).args(arguments);
        command
    }

    /// What it says, on standard output and on the other one, with that exit status.
    pub fn trace(&self, arguments: &[&str], status: i32) -> (String, String) {
        Self::answer(self.command(arguments), status)
    }

    /// What a command says that ends with that status, on standard output and on the other one.
    pub fn answer(mut command: Command, status: i32) -> (String, String) {
        let output = command.output().unwrap();
        let [said, complaints] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let found = output.status.code();
        assert_eq!(found, Some(status), "{command:?}: {said}{complaints}");
        (said, complaints)
    }
}
