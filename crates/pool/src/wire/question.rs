//! What is asked, and how it is refused.

use stdchk_catalog::Op;
use stdchk_object::wire::{Reader, Writer};
use stdchk_object::{Error, Item, Kind, PackName, Result, SessionId};

use crate::shelf::Wish;

/// The kind of a frame that answers.
pub const ANSWER: u8 = 128;
/// The kind of a frame that refuses.
pub const REFUSAL: u8 = 129;
/// The kind of a frame that refuses because the asker knows an older epoch only; its body is the newer one's number.
pub const STALE: u8 = 130;
/// What an answer takes longer for: it is being worked on, and comes after this.
pub const STILL: u8 = 131;
/// What is answered first, and last, over a connection for which there is no place at the moment.
pub const BUSY: u8 = 132;

/// What one process of a pool asks of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Keep the pack that follows as bulk; in the place of one that is damaged, if it `replaces`. One that is a copy is synced at once,
    /// and nobody else gets it from there.
    Put { epoch: u64, item: Item, replaces: bool, is_copy: bool },
    /// Make these packs as safe as the pool promises; who has some of each, be it a shard, sees to it.
    Sync { epoch: u64, names: Vec<PackName> },
    /// How long is this? A shard's tail comes with the answer. Who asks as a member of an epoch, and not of epoch 0, is refused by those who know a newer one, and gets
    /// the answer when the pack is synced.
    Length { epoch: u64, item: Item },
    /// Give me these bytes.
    Read { item: Item, offset: u64, len: u64 },
    /// What is there, behind this, and how long is each pack of it?
    List { after: Option<Item> },
    /// Forget these packs, with all their shards.
    Remove { names: Vec<PackName> },
    /// Forget this, and nothing else of its pack.
    Drop { item: Item },
    /// Read all of this where it lies: how long is it, if every byte is what it should be?
    Inspect { item: Item },
    /// I have this, of that length, and would give it as a copy: is it there and synced, or is there room for it? Nothing is sent for nothing.
    Offer { epoch: u64, item: Item, len: u64 },
    /// Keep room for packs of a writer that are to come, if there is as much: how much is there?
    Reserve { session: SessionId, writer: u32, wish: Wish },
    /// Who are you?
    Who,
    /// What came since?
    Tail { boot: u64, number: u64 },
    /// Append what I decided.
    Append { boot: u64, number: u64, as_saver: bool, durable: bool, ops: Vec<Op> },
    /// This session is alive.
    Beat { session: SessionId },
    /// When was each session last alive?
    BeatAges,
    /// These sessions have ended.
    ForgetBeats { sessions: Vec<SessionId> },
    /// What is wrong with the log?
    Check,
    /// I am alive, and this is how I am.
    Alive(Report),
    /// How is everybody?
    Reports,
    /// Create this object unless it is there; its bytes follow as bulk.
    Create { name: String, durable: bool },
    /// The same, over what is there.
    Replace { name: String, durable: bool },
    /// Give me some bytes of an object.
    Get { name: String, offset: u64, len: u64 },
    /// Which objects are in a folder?
    Names { folder: String },
    /// Forget these objects.
    Delete { names: Vec<String> },
}

/// How something that is offered is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is there, and synced.
    There,
    /// It is not there, and there is room.
    Wanted,
    /// Something else of its name is there, in the place of which it may come.
    Replaces,
}

impl Offered {
    const ALL: [Offered; 3] = [Offered::There, Offered::Wanted, Offered::Replaces];

    /// Writes it.
    pub fn encode(self, w: &mut Writer) {
        w.u8(self as u8);
    }

    /// Reads one.
    pub fn decode(r: &mut Reader) -> Result<Offered> {
        let code = r.u8()?;
        let known = Offered::ALL.get(usize::from(code)).copied();
        known.ok_or_else(|| Error::corrupt(format!("an offer is answered with {code}")))
    }
}

/// What a benefactor says of itself, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Who.
    pub member: u64,
    /// Everything that it holds lies where this epoch wants it, as far as it can tell.
    pub settled: u64,
    /// Bytes that it lends.
    pub capacity: u64,
    /// Bytes that it holds.
    pub used: u64,
    /// Bytes that it keeps for packs to come.
    pub kept: u64,
    /// Packs that it holds.
    pub packs: u64,
    /// Packs that are still to be given to others.
    pub behind: u64,
    /// What it has to do.
    pub load: Load,
}

/// What goes through a process in a second, on average over the last ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of bulk that come.
    pub came: u64,
    /// Bytes of bulk that go.
    pub went: u64,
    /// Questions.
    pub asked: u64,
}

impl Report {
    /// Writes it.
    pub fn encode(&self, w: &mut Writer) {
        w.u64(self.member);
        let Load { came, went, asked } = self.load;
        let Report { settled, capacity, used, kept, packs, behind, .. } = *self;
        let numbers = [settled, capacity, used, kept, packs, behind, came, went, asked];
        numbers.iter().for_each(|&number| w.varint(number));
    }

    /// Reads one.
    pub fn decode(r: &mut Reader) -> Result<Report> {
        Ok(Report {
            member: r.u64()?,
            settled: r.varint()?,
            capacity: r.varint()?,
            used: r.varint()?,
            kept: r.varint()?,
            packs: r.varint()?,
            behind: r.varint()?,
            load: Load { came: r.varint()?, went: r.varint()?, asked: r.varint()? },
        })
    }
}

/// The word for a kind of question.
pub fn question_word(kind: u8) -> &'static str {
    match kind {
        1 => "put",
        2 => "sync",
        3 => "length",
        4 => "read",
        5 => "list",
        6 => "remove",
        7 => "who",
        8 => "drop",
        9 => "inspect",
        10 => "reserve",
        11 => "offer",
        16 => "tail",
        17 => "append",
        18 => "beat",
        19 => "beat_ages",
        20 => "forget_beats",
        21 => "check",
        22 => "alive",
        23 => "reports",
        32 => "create",
        33 => "replace",
        34 => "get",
        35 => "names",
        36 => "delete",
        _ => "unknown",
    }
}

fn encode_all<T>(items: &[T], out: &mut Writer, each: impl Fn(&T, &mut Writer)) {
    out.varint(items.len() as u64);
    items.iter().for_each(|item| each(item, out));
}

fn decode_all<T>(r: &mut Reader, least: usize, each: impl Fn(&mut Reader) -> Result<T>) -> Result<Vec<T>> {
    (0..r.count(least)?).map(|_| each(r)).collect()
}

fn text(r: &mut Reader) -> Result<String> {
    r.string().map(str::to_owned)
}

impl Question {
    /// A span for the time in which it is asked or answered: it names the session that it is about, by which a save can be followed through all
    /// processes of a pool.
    pub fn span(&self, kind: u8, doing: &'static str, with: &dyn std::fmt::Display) -> tracing::Span {
        use tracing::field::{Empty, display};
        let span = tracing::debug_span!("question", doing, with = %with, question = Empty, session = Empty, pack = Empty);
        if span.is_disabled() {
            return span;
        }
        span.record("question", question_word(kind));
        let (session, pack) = self.subject();
        if let Some(session) = session {
            span.record("session", display(session));
        }
        if let Some(pack) = pack {
            span.record("pack", display(pack));
        }
        span
    }

    /// The session that it is about, and the pack, if it is about one.
    fn subject(&self) -> (Option<SessionId>, Option<Item>) {
        let item = match self {
            Question::Put { item, .. }
            | Question::Length { item, .. }
            | Question::Offer { item, .. }
            | Question::Read { item, .. }
            | Question::Drop { item }
            | Question::Inspect { item } => Some(*item),
            Question::Sync { names, .. } | Question::Remove { names } => {
                names.first().map(|&name| name.into())
            }
            _ => None,
        };
        let session = match self {
            Question::Beat { session } | Question::Reserve { session, .. } => Some(*session),
            Question::Append { ops, .. } => ops.iter().find_map(Op::session),
            _ => item.map(|item| item.pack.session),
        };
        (session, item)
    }

    /// The kind of its frame, and its body.
    pub fn encode(&self) -> (u8, Vec<u8>) {
        let mut w = Writer::new();
        let pack = |name: &PackName, w: &mut Writer| w.raw(&name.to_bytes());
        let session = |id: &SessionId, w: &mut Writer| w.u64(id.0);
        let string = |text: &String, w: &mut Writer| w.string(text);
        let kind = match self {
            Question::Put { epoch, item, replaces, is_copy } => {
                w.varint(*epoch);
                item.encode(&mut w);
                w.u8(u8::from(*replaces) | u8::from(*is_copy) << 1);
                1
            }
            Question::Sync { epoch, names } => {
                w.varint(*epoch);
                encode_all(names, &mut w, pack);
                2
            }
            Question::Length { epoch, item } => {
                w.varint(*epoch);
                item.encode(&mut w);
                3
            }
            Question::Read { item, offset, len } => {
                item.encode(&mut w);
                w.varint(*offset);
                w.varint(*len);
                4
            }
            Question::List { after } => {
                encode_all(after.as_slice(), &mut w, |item, w| item.encode(w));
                5
            }
            Question::Remove { names } => {
                encode_all(names, &mut w, pack);
                6
            }
            Question::Who => 7,
            Question::Drop { item } => {
                item.encode(&mut w);
                8
            }
            Question::Inspect { item } => {
                item.encode(&mut w);
                9
            }
            Question::Reserve { session: id, writer, wish } => {
                session(id, &mut w);
                w.u32(*writer);
                w.varint(wish.bytes);
                w.u8(u8::from(wish.of_shards) | u8::from(wish.at_least) << 1);
                10
            }
            Question::Offer { epoch, item, len } => {
                w.varint(*epoch);
                item.encode(&mut w);
                w.varint(*len);
                11
            }
            Question::Tail { boot, number } => {
                w.u64(*boot);
                w.varint(*number);
                16
            }
            Question::Append { boot, number, as_saver, durable, ops } => {
                w.u64(*boot);
                w.varint(*number);
                w.u8(u8::from(*durable) | u8::from(*as_saver) << 1);
                encode_all(ops, &mut w, Op::encode);
                17
            }
            Question::Beat { session: id } => {
                session(id, &mut w);
                18
            }
            Question::BeatAges => 19,
            Question::ForgetBeats { sessions } => {
                encode_all(sessions, &mut w, session);
                20
            }
            Question::Check => 21,
            Question::Alive(report) => {
                report.encode(&mut w);
                22
            }
            Question::Reports => 23,
            Question::Create { name, durable } => {
                w.string(name);
                w.u8(u8::from(*durable));
                32
            }
            Question::Replace { name, durable } => {
                w.string(name);
                w.u8(u8::from(*durable));
                33
            }
            Question::Get { name, offset, len } => {
                w.string(name);
                w.varint(*offset);
                w.varint(*len);
                34
            }
            Question::Names { folder } => {
                w.string(folder);
                35
            }
            Question::Delete { names } => {
                encode_all(names, &mut w, string);
                36
            }
        };
        (kind, w.into_bytes())
    }

    /// Whether others may have to be waited for, so that it is said from time to time that this goes on.
    pub fn takes_long(&self) -> bool {
        matches!(self, Question::Sync { .. } | Question::Inspect { .. })
    }

    /// Whether bulk comes with it.
    pub fn takes_bulk(&self) -> bool {
        matches!(self, Question::Put { .. } | Question::Create { .. } | Question::Replace { .. })
    }

    /// Whether asking it twice is as good as asking it once.
    pub fn may_repeat(&self) -> bool {
        !matches!(self, Question::Put { .. } | Question::Create { .. } | Question::Append { .. })
    }

    /// Reads a question.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Question> {
        let mut reader = Reader::new(body, "question");
        let r = &mut reader;
        let packs = |r: &mut Reader| decode_all(r, PackName::BYTES, PackName::decode);
        let session = |r: &mut Reader| r.u64().map(SessionId);
        let question = match kind {
            1 => {
                let (epoch, item, flags) = (r.varint()?, Item::decode(r)?, r.u8()?);
                Question::Put { epoch, item, replaces: flags & 1 != 0, is_copy: flags & 2 != 0 }
            }
            2 => Question::Sync { epoch: r.varint()?, names: packs(r)? },
            3 => Question::Length { epoch: r.varint()?, item: Item::decode(r)? },
            4 => Question::Read { item: Item::decode(r)?, offset: r.varint()?, len: r.varint()? },
            5 => Question::List { after: decode_all(r, Item::BYTES, Item::decode)?.pop() },
            6 => Question::Remove { names: packs(r)? },
            7 => Question::Who,
            8 => Question::Drop { item: Item::decode(r)? },
            9 => Question::Inspect { item: Item::decode(r)? },
            10 => {
                let (session, writer, bytes, flags) = (session(r)?, r.u32()?, r.varint()?, r.u8()?);
                let wish = Wish { bytes, of_shards: flags & 1 != 0, at_least: flags & 2 != 0 };
                Question::Reserve { session, writer, wish }
            }
            11 => Question::Offer { epoch: r.varint()?, item: Item::decode(r)?, len: r.varint()? },
            16 => Question::Tail { boot: r.u64()?, number: r.varint()? },
            17 => {
                let (boot, number, flags) = (r.u64()?, r.varint()?, r.u8()?);
                let (durable, as_saver) = (flags & 1 != 0, flags & 2 != 0);
                Question::Append { boot, number, as_saver, durable, ops: decode_all(r, 2, Op::decode)? }
            }
            18 => Question::Beat { session: session(r)? },
            19 => Question::BeatAges,
            20 => Question::ForgetBeats { sessions: decode_all(r, 8, session)? },
            21 => Question::Check,
            22 => Question::Alive(Report::decode(r)?),
            23 => Question::Reports,
            32 => Question::Create { name: text(r)?, durable: r.u8()? == 1 },
            33 => Question::Replace { name: text(r)?, durable: r.u8()? == 1 },
            34 => Question::Get { name: text(r)?, offset: r.varint()?, len: r.varint()? },
            35 => Question::Names { folder: text(r)? },
            36 => Question::Delete { names: decode_all(r, 1, text)? },
            other => {
                let text = format!("nobody here knows questions of the kind {other}");
                return Err(Error::new(Kind::Unsupported, text));
            }
        };
        reader.finish()?;
        Ok(question)
    }
}

/// The body of a refusal.
pub fn encode_refusal(error: &Error) -> Vec<u8> {
    let mut w = Writer::new();
    w.string(error.kind().as_str());
    w.string(&error.to_string());
    w.into_bytes()
}

/// What was refused, and why.
pub fn decode_refusal(body: &[u8]) -> Error {
    let read = || -> Result<Error> {
        let mut r = Reader::new(body, "refusal");
        let (kind, text) = (r.string()?, r.string()?);
        // A word that is not known is some failure.
        Ok(Error::new(Kind::of_word(kind).unwrap_or(Kind::Io), text))
    };
    read().unwrap_or_else(|error| error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_asked() {
        let name = PackName { session: SessionId(5), writer: 6, number: 7 };
        let text = || "index/0".to_owned();
        let all = [
            Question::Put { epoch: 300, item: name.into(), replaces: true, is_copy: false },
            Question::Put { epoch: 0, item: Item::shard(name, 3), replaces: false, is_copy: true },
            Question::Sync { epoch: 1, names: vec![name, name] },
            Question::Length { epoch: 9, item: name.into() },
            Question::Offer { epoch: 9, item: Item::shard(name, 2), len: 1 << 40 },
            Question::Drop { item: Item::shard(name, 0) },
            Question::Inspect { item: Item::shard(name, 1) },
            Question::Reserve {
                session: name.session,
                writer: 9,
                wish: Wish { bytes: 1 << 33, of_shards: true, at_least: false },
            },
            Question::Read { item: name.into(), offset: 1 << 40, len: 0 },
            Question::List { after: None },
            Question::List { after: Some(Item::shard(name, 5)) },
            Question::Remove { names: vec![] },
            Question::Who,
            Question::Tail { boot: 1, number: 2 },
            Question::Append {
                boot: 1,
                number: 2,
                as_saver: true,
                durable: false,
                ops: vec![Op::End(SessionId(1))],
            },
            Question::Beat { session: SessionId(9) },
            Question::BeatAges,
            Question::ForgetBeats { sessions: vec![SessionId(9)] },
            Question::Check,
            Question::Alive(Report {
                member: 1,
                settled: 2,
                capacity: 3,
                used: 4,
                kept: 10,
                packs: 5,
                behind: 6,
                load: Load { came: 7, went: 8, asked: 9 },
            }),
            Question::Reports,
            Question::Create { name: text(), durable: false },
            Question::Replace { name: text(), durable: true },
            Question::Get { name: text(), offset: 3, len: u64::MAX },
            Question::Names { folder: text() },
            Question::Delete { names: vec![text(), text()] },
        ];
        for question in all {
            let (kind, body) = question.encode();
            assert_ne!(question_word(kind), "unknown");
            assert_eq!(Question::decode(kind, &body).unwrap(), question);
            for cut in 0..body.len() {
                assert!(Question::decode(kind, &body[..cut]).is_err());
            }
        }
        assert_eq!(Question::decode(99, &[]).unwrap_err().kind(), Kind::Unsupported);
    }

    #[test]
    fn refusals_keep_their_kind() {
        let error = Error::new(Kind::Full, "no room").within("pack 5");
        let read = decode_refusal(&encode_refusal(&error));
        assert_eq!((read.kind(), read.to_string()), (Kind::Full, error.to_string()));
        assert_eq!(decode_refusal(b"rubbish").kind(), Kind::Corrupt);
    }
}
