//! Where a kernel that runs can be reached, and the line to it.
//!
//! # Invariants
//! LINE-1. No operation waits longer than it was told to, whatever the other side does.

use std::{
    fmt, io,
    net::TcpStream,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags},
    io::{Errno, ioctl_fionbio},
    termios::{OptionalActions, Termios},
};

/// Where a kernel can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system, such as QEMU makes for a serial port.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
    /// A terminal: a pseudo terminal, or a serial port of this machine.
    Terminal(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give unix:SOCKET, tcp:HOST:PORT or pty:DEVICE, such as unix:/tmp/trace";
        match text.split_once(':') {
            Some((_, "")) | None => Err(wrong().into()),
            Some(("unix", path)) => Ok(Self::Unix(path.into())),
            Some(("pty", path)) => Ok(Self::Terminal(path.into())),
            Some(("tcp", address)) => match address.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Self::Tcp(address.into()))
                }
                _ => Err("a TCP address is HOST:PORT, such as tcp:localhost:4444".into()),
            },
            Some(_) => Err(wrong().into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Terminal(path) => write!(f, "pty:{}", path.display()),
        }
    }
}

/// A line of bytes.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// What has become possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub read: bool,
    pub write: bool,
}

impl Line {
    /// Opens it.
    pub fn open(address: &Address) -> Result<Self> {
        let opened: io::Result<OwnedFd> = match address {
            Address::Unix(path) => UnixStream::connect(path).map(OwnedFd::from),
            Address::Tcp(address) => TcpStream::connect(address).map(OwnedFd::from),
            Address::Terminal(path) => open_terminal(path).map_err(io::Error::from),
        };
        let line = opened.with_context(|| {
            format!("cannot connect to {address}; is the kernel there, and its port free?")
        })?;
        ioctl_fionbio(&line, true).with_context(|| format!("cannot use {address}"))?;
        Ok(Self(line))
    }

    /// Waits at most so long until something has come, or, if that is wanted, until there is room
    /// for bytes.
    pub fn wait(&self, room: bool, limit: Duration) -> io::Result<Ready> {
        let write = if room {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        let mut line = [PollFd::from_borrowed_fd(
            self.0.as_fd(),
            PollFlags::IN | write,
        )];
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        match poll(&mut line, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = line[0].revents();
        // Errors and the end of the line are found by reading.
        let end = PollFlags::HUP | PollFlags::ERR;
        Ok(Ready {
            read: found.intersects(PollFlags::IN | end),
            write: found.contains(PollFlags::OUT),
        })
    }

    /// Reads what is there. None: nothing is. 0: the line has ended.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.0, buffer) {
            Ok(count) => Ok(Some(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            // Of a terminal whose other side is closed, and of a socket whose other side is closed
            // and has left bytes unread.
            Err(Errno::IO | Errno::CONNRESET) => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as many bytes as there is room for, and returns their number.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::io::write(&self.0, bytes) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// A terminal that changes no byte, at the speed of the kernel's serial port.
fn open_terminal(path: &PathBuf) -> rustix::io::Result<OwnedFd> {
    const BITS_PER_SECOND: u32 = 115_200;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(path, flags, Mode::empty())?;
    let mut settings: Termios = rustix::termios::tcgetattr(&terminal)?;
    settings.make_raw();
    settings.set_speed(BITS_PER_SECOND)?;
    rustix::termios::tcsetattr(&terminal, OptionalActions::Now, &settings)?;
    Ok(terminal)
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for text in [
            "unix:/a b:c",
            "tcp:localhost:1",
            "tcp:[::1]:65535",
            "pty:/dev/pts/3",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        for wrong in [
            "",
            "/a",
            "unix:",
            "udp:x:1",
            "tcp:x",
            "tcp::1",
            "tcp:x:y",
            "tcp:x:65536",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    /// A kernel that dies reads nothing more, and what it has sent is there.
    #[test]
    fn a_line_whose_other_side_has_left_bytes_unread_has_an_end() {
        let (own, mut other) = UnixStream::pair().unwrap();
        let line = Line(own.into());
        assert_eq!(line.write(b"unread").unwrap(), 6);
        other.write_all(b"last").unwrap();
        drop(other);
        let mut buffer = [0; 8];
        assert_eq!(line.read(&mut buffer).unwrap(), Some(4));
        assert_eq!(line.read(&mut buffer).unwrap(), Some(0));
    }

    #[test]
    fn what_cannot_be_opened_is_told_with_its_name() {
        let address: Address = "unix:/no/such/socket".parse().unwrap();
        let error = Line::open(&address).unwrap_err().to_string();
        assert!(
            error.contains("cannot connect to unix:/no/such/socket"),
            "{error}"
        );
        let address: Address = "pty:/dev/null".parse().unwrap();
        assert!(Line::open(&address).is_err());
    }
}
