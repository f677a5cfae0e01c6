//! TLS 1.3 between members: each has the pool's certificate, and takes no other.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName,
    ServerConfig, ServerConnection, SignatureScheme,
};
use stdchk_object::{Error, Kind, Result};

use super::link::Link;

/// Whom the certificate names. Nobody looks for it: the whole certificate has to be the one.
const NAME: &str = "stdchk-pool";
/// What stands before an Ed25519 seed in PKCS #8 (RFC 8410, section 7).
const PKCS8_HEAD: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
/// Bytes that are received with one call: a little more than a record of TLS has, and more where more comes.
const RECEIVE_BYTES: usize = 20 << 10;
const RECEIVE_BYTES_MAX: usize = 256 << 10;

/// What sessions of a pool are made of.
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
}

impl Tls {
    /// The one that follows from a secret: the same for everybody who knows it.
    pub fn of_seed(seed: &[u8; 32]) -> Result<Tls> {
        let cannot =
            |why: String| Error::new(Kind::Unsupported, format!("cannot make the pool's certificate: {why}"));
        let secret = [&PKCS8_HEAD[..], seed].concat();
        let pair = rcgen::KeyPair::try_from(&secret[..]).map_err(|error| cannot(error.to_string()))?;
        let mut params =
            rcgen::CertificateParams::new([NAME.to_owned()]).map_err(|error| cannot(error.to_string()))?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, NAME);
        params.serial_number = Some(1u64.into());
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(4000, 1, 1);
        let certificate = params.self_signed(&pair).map_err(|error| cannot(error.to_string()))?;
        let certificate = certificate.der().clone().into_owned();
        let provider = Arc::new(provider());
        let only = Arc::new(OnlyThis {
            certificate: certificate.clone(),
            algorithms: provider.signature_verification_algorithms,
        });
        let chain = || (vec![certificate.clone()], PrivatePkcs8KeyDer::from(secret.clone()).into());
        let broken = |error: rustls::Error| cannot(error.to_string());
        let (mine, key) = chain();
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(broken)?
            .dangerous()
            .with_custom_certificate_verifier(only.clone())
            .with_client_auth_cert(mine, key)
            .map_err(broken)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let (mine, key) = chain();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(broken)?
            .with_client_cert_verifier(only)
            .with_single_cert(mine, key)
            .map_err(broken)?;
        // Nothing may come while nothing was asked, so that the end of a connection can be seen.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Tls { client: Arc::new(client), server: Arc::new(server), certificate })
    }

    /// The certificate, in DER.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// A session that this side begins.
    pub fn client(&self) -> Session {
        let name = ServerName::try_from(NAME).expect("a name of letters");
        Session::new(ClientConnection::new(self.client.clone(), name).map(Connection::from))
    }

    /// A session that the other side begins.
    pub fn server(&self) -> Session {
        Session::new(ServerConnection::new(self.server.clone()).map(Connection::from))
    }
}

/// The shorter keys first: they are as safe here, and faster.
fn provider() -> CryptoProvider {
    use ring::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
    };
    let cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites, ..ring::default_provider() }
}

/// Takes one certificate, of whichever side, and no other.
#[derive(Debug)]
struct OnlyThis {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OnlyThis {
    fn check(&self, shown: &CertificateDer<'_>) -> std::result::Result<(), rustls::Error> {
        match *shown == self.certificate {
            true => Ok(()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    /// Nobody gets here, since nothing older than 1.3 is spoken.
    fn too_old() -> rustls::Error {
        rustls::Error::General("TLS 1.2 is not spoken".into())
    }
}

/// What a side checks of the other's handshake: the same for both, though they are two traits.
macro_rules! checks_of_both_sides {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            Err(OnlyThis::too_old())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
            verify_tls13_signature(message, certificate, signed, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    };
}

impl ServerCertVerifier for OnlyThis {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    checks_of_both_sides!();
}

impl ClientCertVerifier for OnlyThis {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    checks_of_both_sides!();
}

/// One session: what it knows, apart from the link that it goes over.
pub struct Session {
    connection: Connection,
    /// Room for bytes that come, how many there are, and how many of these were looked at.
    room: Vec<u8>,
    come: usize,
    looked_at: usize,
}

impl Session {
    fn new(made: std::result::Result<Connection, rustls::Error>) -> Session {
        let mut connection = made.expect("a session of a certificate that was accepted");
        // Whoever sends hands over little at a time, and waits until it is sent.
        connection.set_buffer_limit(None);
        Session { connection, room: Vec::new(), come: 0, looked_at: 0 }
    }

    /// Sends a word in the clear, and with it what the session has to say first, if anything.
    pub fn greet(&mut self, link: &mut dyn Link, word: &[u8]) -> io::Result<()> {
        let mut first = word.to_vec();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut first)?;
        }
        link.send(&[&first])
    }

    /// Goes on until both sides have shown who they are.
    pub fn shake_hands(&mut self, link: &mut dyn Link) -> Result<()> {
        let lost = |error| Error::io("a greeting broke off", error).with_kind(Kind::Io);
        while self.connection.is_handshaking() {
            if self.connection.wants_write() {
                self.flush(link).map_err(lost)?;
                continue;
            }
            if self.take_in(link).map_err(lost)? == 0 {
                return Err(lost(io::ErrorKind::UnexpectedEof.into()));
            }
            if let Err(error) = self.connection.process_new_packets() {
                // So that the other side can say what is wrong.
                let _ = self.flush(link);
                return Err(refused(&error));
            }
        }
        self.flush(link).map_err(lost)
    }

    /// Sends what there is to be sent.
    fn flush(&mut self, link: &mut dyn Link) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut Out(link))?;
        }
        Ok(())
    }

    /// Receives, where nothing has come that was not looked at, and looks at some of it.
    fn take_in(&mut self, link: &mut dyn Link) -> io::Result<usize> {
        if self.looked_at == self.come {
            self.fit_room();
            (self.come, self.looked_at) = (0, 0);
            self.come = link.receive_some(&mut self.room)?;
        }
        let mut rest = &self.room[self.looked_at..self.come];
        let taken = self.connection.read_tls(&mut rest)?;
        self.looked_at += taken;
        Ok(taken)
    }

    /// Makes room for as much as came the last time, and more if all of it was full: most connections say little, and there may be many.
    fn fit_room(&mut self) {
        let wanted = if self.come == self.room.len() { 2 * self.come } else { self.come };
        let wanted = wanted.clamp(RECEIVE_BYTES, RECEIVE_BYTES_MAX);
        if wanted > self.room.len() || 4 * wanted < self.room.len() {
            self.room = vec![0; wanted];
        }
    }

    fn send(&mut self, link: &mut dyn Link, slices: &[&[u8]]) -> io::Result<()> {
        slices.iter().try_for_each(|slice| self.connection.writer().write_all(slice))?;
        self.flush(link)
    }

    fn receive_some(&mut self, link: &mut dyn Link, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // It ends between frames, or else whoever wants the rest of one says so.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.take_in(link)?;
            let processed = self.connection.process_new_packets();
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

/// Why a session does not begin.
fn refused(error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InvalidCertificate(_)
        | rustls::Error::NoCertificatesPresented
        | rustls::Error::AlertReceived(_) => {
            Error::new(Kind::Denied, "the other side has another key: it belongs to another pool")
        }
        other => Error::corrupt(format!("the other side does not speak TLS as it should: {other}")),
    }
}

/// A link as something to write to.
struct Out<'l>(&'l mut dyn Link);

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(&[bytes]).map(|()| bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let slices: Vec<&[u8]> = pieces.iter().map(|piece| &**piece).collect();
        self.0.send(&slices)?;
        Ok(slices.iter().map(|slice| slice.len()).sum())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A link within which everything is encrypted.
pub struct TlsLink {
    link: Box<dyn Link>,
    session: Session,
}

impl TlsLink {
    /// Over a link on which the session has begun.
    pub fn new(link: Box<dyn Link>, session: Session) -> TlsLink {
        TlsLink { link, session }
    }
}

impl Link for TlsLink {
    fn send(&mut self, slices: &[&[u8]]) -> io::Result<()> {
        self.session.send(&mut *self.link, slices)
    }

    fn receive_some(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.session.receive_some(&mut *self.link, buffer)
    }

    fn set_patience(&mut self, patience: Option<std::time::Duration>) -> io::Result<()> {
        self.link.set_patience(patience)
    }

    fn is_open(&mut self) -> bool {
        self.session.looked_at == self.session.come && self.link.is_open()
    }
}
