//! The HTTP requests of the object store's library, made by the HTTP client and the TLS that downloads use too.

use std::env;
use std::fs;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a store may take to accept or send the next bytes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest object, in bytes.
const MAX_OBJECT: u64 = 1 << 30;

/// Makes requests in the thread that waits for them.
#[derive(Debug, Clone)]
pub(crate) struct HttpRequests {
    agent: Agent,
}

impl HttpRequests {
    /// With the certificates in the file `AWS_CA_BUNDLE`, if it is set.
    pub(crate) fn new() -> io::Result<Self> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = env::var_os("AWS_CA_BUNDLE") {
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("AWS_CA_BUNDLE={}: {error}", file.display()));
            let text = fs::read(&file).map_err(named)?;
            let mut certificates = Vec::new();
            for item in parse_pem(&text) {
                if let PemItem::Certificate(certificate) = item.map_err(|error| named(io::Error::other(error)))? {
                    certificates.push(certificate);
                }
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls.build())
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(IDLE_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .timeout_per_write(Some(IDLE_TIMEOUT))
            .build();
        Ok(HttpRequests { agent: Agent::new_with_config(config) })
    }
}

impl HttpConnector for HttpRequests {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for HttpRequests {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let response = if body.is_empty() {
            self.agent.run(ureq::http::Request::from_parts(head, ()))
        } else {
            self.agent.run(ureq::http::Request::from_parts(head, &body[..]))
        };
        let (head, mut body) = response.map_err(failure)?.into_parts();
        let bytes = body.with_config().limit(MAX_OBJECT).read_to_vec().map_err(failure)?;
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(bytes)))
    }
}

/// The kind decides whether the request is made again.
fn failure(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => HttpErrorKind::Connect,
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => HttpErrorKind::Connect,
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::Io(_) | ureq::Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
