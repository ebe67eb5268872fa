//! Both ends of the link over a stream, joined in memory: bytes come whole, in pieces, damaged, cut
//! off, double, or after noise. What comes out has to be what was sent, from the first on, and then
//! nothing or damage.

use proptest::{collection::vec, prelude::*, sample::Index};
use trace_wire::stream::{
    Asked, Damage, Deathbed, FrameKind, HostEnd, KernelEnd, MOST_FRAME, Piece, Said, VERSION, Whole,
};

/// What the host asked for, with copies of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Hello,
    Begin(u32, String),
    Script(Vec<u8>),
    Run,
    End,
    Leave,
    Alive,
    Damaged(Damage),
}

fn wishes(kernel: &mut KernelEnd, mut input: &[u8]) -> Vec<Wish> {
    let mut wishes = Vec::new();
    while let Some(asked) = kernel.next(&mut input) {
        wishes.push(match asked {
            Asked::Hello => Wish::Hello,
            Asked::Begin { bytes, options } => Wish::Begin(bytes, options.into()),
            Asked::Script(piece) => Wish::Script(piece.into()),
            Asked::Run => Wish::Run,
            Asked::End => Wish::End,
            Asked::Leave => Wish::Leave,
            Asked::Alive => Wish::Alive,
            Asked::Damaged(damage) => Wish::Damaged(damage),
        });
    }
    assert!(input.is_empty());
    wishes
}

fn said(host: &mut HostEnd, mut input: &[u8]) -> Vec<Result<Said, Damage>> {
    let mut all = Vec::new();
    while let Some(said) = host.next(&mut input) {
        let is_damage = said.is_err();
        all.push(said);
        if is_damage {
            break;
        }
    }
    all
}

fn in_pieces<T>(bytes: &[u8], step: usize, mut take: impl FnMut(&[u8]) -> Vec<T>) -> Vec<T> {
    bytes.chunks(step).flat_map(&mut take).collect()
}

/// Runs a kernel's sending function and returns the bytes.
fn sent(send: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Vec<u8> {
    let mut bytes = Vec::new();
    send(&mut |more| bytes.extend_from_slice(more));
    bytes
}

/// The bytes of a host that has a script run and ends it.
fn of_host(script: &[u8]) -> Vec<u8> {
    let mut host = HostEnd::new(7);
    let mut bytes = host.hello();
    bytes.extend(host.script(script, "nanoseconds=5\n").unwrap());
    bytes.extend(host.alive());
    bytes.extend(host.end());
    bytes.extend(host.leave());
    bytes
}

/// A kernel that was called by `call`, and the bytes of its answers.
fn of_kernel(call: u32, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut kernel = KernelEnd::new();
    wishes(&mut kernel, &HostEnd::new(call).hello());
    sent(|mut out| {
        kernel.welcome("cpus=2\n", &mut out);
        for message in messages {
            kernel.message(message, &mut out);
            kernel.alive(&mut out);
        }
        kernel.over(&mut out);
    })
}

fn told(messages: &[Vec<u8>]) -> Vec<Said> {
    let welcome = Said::Welcome {
        version: VERSION,
        about: "cpus=2\n".into(),
    };
    let answers = messages
        .iter()
        .flat_map(|message| [Said::Message(message.clone()), Said::Alive]);
    let all = std::iter::once(welcome).chain(answers);
    all.chain([Said::Over]).collect()
}

/// A change of a stream of bytes.
#[derive(Clone, Debug)]
enum Fault {
    Flip(Index, u8),
    Lose(Index, usize),
    Double(Index, usize),
    Insert(Index, Vec<u8>),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Fault::Flip(at, bit)),
        (any::<Index>(), 1..2 * MOST_FRAME).prop_map(|(at, count)| Fault::Lose(at, count)),
        (any::<Index>(), 1..2 * MOST_FRAME).prop_map(|(at, count)| Fault::Double(at, count)),
        (any::<Index>(), vec(any::<u8>(), 1..40)).prop_map(|(at, new)| Fault::Insert(at, new)),
    ]
}

fn with_fault(bytes: &[u8], fault: &Fault) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.is_empty() {
        // An earlier fault has lost all.
        return bytes;
    }
    match fault {
        Fault::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        Fault::Lose(at, count) => {
            let at = at.index(bytes.len());
            bytes.drain(at..(at + count).min(bytes.len()));
        }
        Fault::Double(at, count) => {
            let at = at.index(bytes.len());
            let end = (at + count).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(end..end, again);
        }
        Fault::Insert(at, new) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, new.iter().copied());
        }
    }
    bytes
}

#[test]
fn a_session_goes_both_ways_byte_by_byte() {
    let script: Vec<u8> = (0..3000_u32).map(|number| number as u8).collect();
    let stream = of_host(&script);
    for step in [1, 2, 15, 16, 17, MOST_FRAME, stream.len()] {
        let mut kernel = KernelEnd::new();
        let all = in_pieces(&stream, step, |piece| wishes(&mut kernel, piece));
        let pieces: Vec<u8> = all
            .iter()
            .filter_map(|wish| match wish {
                Wish::Script(piece) => Some(piece.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(pieces, script, "in steps of {step}");
        let mut others = all;
        others.retain(|wish| !matches!(wish, Wish::Script(_)));
        let begin = Wish::Begin(3000, "nanoseconds=5\n".into());
        let (hello, run) = (Wish::Hello, Wish::Run);
        assert_eq!(
            others,
            [hello, begin, run, Wish::Alive, Wish::End, Wish::Leave]
        );
    }
    let messages = [vec![], vec![1; 5000], vec![2; 1024]];
    let stream = of_kernel(7, &messages);
    for step in [1, 16, 999, stream.len()] {
        let mut host = HostEnd::new(7);
        let all = in_pieces(&stream, step, |piece| said(&mut host, piece));
        let all: Vec<Said> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, told(&messages), "in steps of {step}");
    }
}

#[test]
fn a_long_welcome_and_a_refusal_come_whole() {
    let about: String = (0..500)
        .map(|number| format!("event=a:{number}\n"))
        .collect();
    let mut kernel = KernelEnd::new();
    let mut host = HostEnd::new(1);
    assert_eq!(wishes(&mut kernel, &host.hello()), [Wish::Hello]);
    let bytes = sent(|mut out| kernel.welcome(&about, &mut out));
    let version = VERSION;
    assert_eq!(
        said(&mut host, &bytes),
        [Ok(Said::Welcome { version, about })]
    );
    let why = "there is no room ".repeat(200);
    let bytes = sent(|mut out| kernel.refuse(&why, &mut out));
    assert_eq!(said(&mut host, &bytes), [Ok(Said::Refusal(why))]);
    // After it only a hello is heard.
    assert_eq!(wishes(&mut kernel, &host.alive()), []);
    assert_eq!(wishes(&mut kernel, &host.hello()), [Wish::Hello]);
}

/// Of many frames.
#[test]
fn a_long_answer_comes_whole() {
    let answers = [vec![3; 200_000], vec![4]];
    let mut host = HostEnd::new(7);
    let heard = said(&mut host, &of_kernel(7, &answers));
    let heard: Vec<Said> = heard.into_iter().map(Result::unwrap).collect();
    assert_eq!(heard, told(&answers));
}

#[test]
fn a_script_of_no_bytes_is_whole_at_once_and_another_one_may_come() {
    let mut kernel = KernelEnd::new();
    let mut host = HostEnd::new(1);
    let bytes = [host.hello(), host.script(&[], "").unwrap()].concat();
    let begin = || Wish::Begin(0, String::new());
    assert_eq!(
        wishes(&mut kernel, &bytes),
        [Wish::Hello, begin(), Wish::Run]
    );
    sent(|mut out| kernel.over(&mut out));
    let bytes = host.script(&[], "").unwrap();
    assert_eq!(wishes(&mut kernel, &bytes), [begin(), Wish::Run]);
    // While it runs, no other one may.
    let bytes = host.script(&[], "").unwrap();
    let wrong = Wish::Damaged(Damage::Order(FrameKind::Begin));
    assert_eq!(wishes(&mut kernel, &bytes), [wrong]);
    assert_eq!(
        host.script(&[], &"x".repeat(HostEnd::MOST_OPTIONS + 1)),
        None
    );
}

/// A host that was unplugged has left half a script. The next one is served.
#[test]
fn a_new_host_is_served_whatever_was_before() {
    let first = of_host(&[3; 2000]);
    for cut in 0..first.len() {
        let mut kernel = KernelEnd::new();
        wishes(&mut kernel, &first[..cut]);
        let mut host = HostEnd::new(8);
        // The first hello may complete the frame that was cut off, and is lost with it.
        let hellos: Vec<u8> = (0..MOST_FRAME / 24 + 2)
            .flat_map(|_| host.hello())
            .collect();
        let heard = wishes(&mut kernel, &hellos);
        assert_eq!(heard.last(), Some(&Wish::Hello), "cut at {cut}");
        let rest = host.script(&[4], "").unwrap();
        let begin = Wish::Begin(1, String::new());
        let wanted = [begin, Wish::Script(vec![4]), Wish::Run];
        assert_eq!(wishes(&mut kernel, &rest), wanted, "cut at {cut}");
    }
}

#[test]
fn answers_to_a_host_before_are_skipped() {
    let old = of_kernel(6, &[vec![1, 2, 3]]);
    let new = of_kernel(7, &[vec![4]]);
    for cut in 0..=old.len() {
        let mut host = HostEnd::new(7);
        // Whatever was cut off, the welcome is found, unless it completes a frame. The kernel
        // answers the next hello then.
        let stream = [&old[..cut], &[0; MOST_FRAME], &new].concat();
        let all: Vec<Said> = said(&mut host, &stream)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        assert_eq!(all, told(&[vec![4]]), "cut at {cut}");
    }
}

const PIECE: Piece = Piece {
    of: Whole::Ring { cpu: 1 },
    whole: 8192,
    at: 4096,
};

/// The last words of a kernel to the host of that call, with one piece of its memory.
fn of_dying_kernel(call: u32) -> Vec<u8> {
    sent(|mut out| {
        let mut deathbed = Deathbed::new(call, "it is broken", &mut out);
        deathbed.memory(&PIECE, 3000, &mut |_, to| to.fill(7), &mut out);
        deathbed.over(&mut out);
    })
}

/// Wherever the stream of answers is when the kernel dies, in the middle of a frame or not.
#[test]
fn a_kernel_that_dies_is_heard_whatever_it_was_sending() {
    let stream = of_kernel(7, &[vec![1; 1500], vec![2]]);
    let before_the_end = stream.len() - 16;
    let memory = Said::Memory {
        piece: PIECE,
        bytes: vec![7; 3000],
    };
    let words = [Said::Died("it is broken".into()), memory, Said::Over];
    let answers = told(&[vec![1; 1500], vec![2]]);
    for cut in 0..=before_the_end {
        let dying = [&stream[..cut], &of_dying_kernel(7)].concat();
        let mut host = HostEnd::new(7);
        let mut heard = Vec::new();
        let mut input = &dying[..];
        while let Some(said) = host.next(&mut input) {
            heard.extend(said.ok());
        }
        let (before, last) = heard.split_at(heard.len().saturating_sub(words.len()));
        assert_eq!(last, words, "cut at {cut}");
        assert_eq!(before, &answers[..before.len()], "cut at {cut}");
        // Few words come after a frame that was to have many more bytes.
        let few = sent(|mut out| Deathbed::new(7, "", &mut out).over(&mut out));
        let dying = [&stream[..cut], &few].concat();
        let mut host = HostEnd::new(7);
        let mut input = &dying[..];
        let heard = std::iter::from_fn(|| host.next(&mut input)).flatten();
        let heard: Vec<Said> = heard.collect();
        let wanted = [Said::Died(String::new()), Said::Over];
        assert!(heard.ends_with(&wanted), "cut at {cut}: {heard:?}");
        // Its words to another host, whose place this one has taken, are not for this one.
        let mut host = HostEnd::new(8);
        let heard = said(&mut host, &dying);
        assert_eq!(heard, [], "cut at {cut}");
    }
}

#[test]
fn the_memory_of_a_recording_that_ends_comes_among_its_answers() {
    let mut kernel = KernelEnd::new();
    assert_eq!(kernel.call(), None);
    wishes(&mut kernel, &HostEnd::new(7).hello());
    assert_eq!(kernel.call(), Some(7));
    let bytes = sent(|mut out| {
        kernel.welcome("cpus=2\n", &mut out);
        kernel.memory(&PIECE, 2010, &mut |at, to| to.fill(at as u8 + 7), &mut out);
        kernel.message(&[4], &mut out);
        kernel.over(&mut out);
    });
    let mut wanted = told(&[vec![4]]);
    // The sign of life that is not there.
    wanted.remove(2);
    let memory = Said::Memory {
        piece: PIECE,
        bytes: vec![7; 2010],
    };
    wanted.insert(1, memory);
    let heard = said(&mut HostEnd::new(7), &bytes);
    let heard: Vec<Said> = heard.into_iter().map(Result::unwrap).collect();
    assert_eq!(heard, wanted);
    kernel.forget();
    assert_eq!(kernel.call(), None);
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever happens to the bytes, the kernel never runs another script than the host's, and
    /// nothing comes out after damage.
    #[test]
    fn a_kernel_runs_no_script_that_was_not_sent(
        script in vec(any::<u8>(), 0..4000),
        faults in vec(fault(), 1..4),
        step in 1..3000_usize,
    ) {
        let stream = of_host(&script);
        let damaged = faults.iter().fold(stream, |bytes, fault| with_fault(&bytes, fault));
        let mut kernel = KernelEnd::new();
        let mut loaded: Option<Vec<u8>> = None;
        let mut is_damaged = false;
        for wish in in_pieces(&damaged, step, |piece| wishes(&mut kernel, piece)) {
            prop_assert!(!is_damaged || wish == Wish::Hello, "{:?}", wish);
            is_damaged = matches!(wish, Wish::Damaged(_));
            match wish {
                Wish::Hello | Wish::Damaged(_) => loaded = None,
                Wish::Begin(bytes, options) => {
                    prop_assert_eq!((bytes as usize, &*options), (script.len(), "nanoseconds=5\n"));
                    loaded = Some(Vec::new());
                }
                Wish::Script(piece) => loaded.as_mut().expect("a beginning").extend(piece),
                Wish::Run => prop_assert_eq!(loaded.as_ref(), Some(&script)),
                _ => {}
            }
        }
    }

    /// Whatever happens to the bytes, the host sees the first answers of the kernel, and after them
    /// nothing or damage.
    #[test]
    fn a_host_sees_no_answer_that_was_not_sent(
        messages in vec(vec(any::<u8>(), 0..2500), 0..6),
        faults in vec(fault(), 1..4),
        step in 1..3000_usize,
    ) {
        let stream = of_kernel(7, &messages);
        let damaged = faults.iter().fold(stream, |bytes, fault| with_fault(&bytes, fault));
        let mut host = HostEnd::new(7);
        let wanted = told(&messages);
        let mut next = 0;
        for answer in in_pieces(&damaged, step, |piece| said(&mut host, piece)) {
            match answer {
                Ok(answer) => {
                    // A whole stream may have come twice: a welcome begins from the front.
                    if matches!(answer, Said::Welcome { .. }) {
                        next = 0;
                    }
                    prop_assert_eq!(Some(&answer), wanted.get(next));
                    next += 1;
                }
                Err(_) => break,
            }
        }
        let mut nothing: &[u8] = &[];
        prop_assert!(!matches!(host.next(&mut nothing), Some(Ok(_))));
    }

    /// Neither end panics on any bytes.
    #[test]
    fn any_bytes_are_taken(bytes in vec(any::<u8>(), 0..5000), step in 1..100_usize) {
        let mut kernel = KernelEnd::new();
        prop_assert_eq!(in_pieces(&bytes, step, |piece| wishes(&mut kernel, piece)), []);
        let mut host = HostEnd::new(7);
        prop_assert_eq!(in_pieces(&bytes, step, |piece| said(&mut host, piece)), []);
    }
}
