//! `/livez`, `/readyz` and `/metrics`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::Metrics;
use crate::publisher::Published;

/// Connections served at once: a scraper and two probes need three.
const CONNECTIONS: usize = 32;

/// How long a client may take to say what it wants.
const HEADERS: Duration = Duration::from_secs(5);

/// What the answers are made of.
pub(crate) struct State {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Whether kubelet has registered us.
    pub registered: watch::Receiver<bool>,
    /// Whether the API shows our devices.
    pub published: watch::Receiver<Published>,
}

/// The address can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("{address}: listen: {cause}")]
pub(crate) struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// Why.
    #[source]
    pub cause: std::io::Error,
}

/// Serves until cancelled.
pub(crate) async fn serve(address: SocketAddr, state: State, cancel: CancellationToken) -> Result<(), ListenError> {
    let listener = TcpListener::bind(address).await.map_err(|cause| ListenError { address, cause })?;
    let (state, connections, places) = (Arc::new(state), TaskTracker::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    loop {
        let stream = tokio::select! {
            () = cancel.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, for example: others may give some back.
                    tracing::warn!(%address, %error, "can't accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        let (state, cancel) = (Arc::clone(&state), cancel.clone());
        connections.spawn(async move {
            let answer = service_fn(move |request| {
                let answer = answer(&state, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADERS)
                .serve_connection(TokioIo::new(stream), answer);
            tokio::select! {
                // What a client does wrong is its own affair.
                _ = connection => {}
                () = cancel.cancelled() => {}
            }
            drop(place);
        });
    }
    connections.close();
    connections.wait().await;
    Ok(())
}

fn answer(state: &State, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let text = |status: StatusCode, kind: &'static str, text: String| {
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
        response
    };
    let plain = "text/plain; charset=utf-8";
    match request.uri().path() {
        "/livez" => text(StatusCode::OK, plain, "ok\n".to_owned()),
        "/readyz" => {
            let mut missing = Vec::new();
            if !*state.registered.borrow() {
                missing.push("kubelet has not registered the plugin");
            }
            if *state.published.borrow() == Published::No {
                missing.push("the node's devices are not published");
            }
            if missing.is_empty() {
                text(StatusCode::OK, plain, "ok\n".to_owned())
            } else {
                text(StatusCode::SERVICE_UNAVAILABLE, plain, missing.join("\n") + "\n")
            }
        }
        "/metrics" => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(StatusCode::OK, kind, state.metrics.text())
        }
        _ => text(StatusCode::NOT_FOUND, plain, "not found; there are /livez, /readyz and /metrics\n".to_owned()),
    }
}
