//! Connections, and how they end.

use crate::api::App;
use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A listener that clients can connect to, but that nothing answers on yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Bound {
    /// Errors when the address cannot be had.
    pub async fn new(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

/// After an error of accepting, such as too many open files, before the next try.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`; then takes no more requests, lets those that run finish for `grace`,
/// ends what is left with an error and returns.
pub async fn serve(
    bound: Bound,
    app: Arc<App>,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) {
    let router = super::router(Arc::clone(&app));
    let connections = Arc::new(Semaphore::new(app.limits.connections));
    let graceful = GracefulShutdown::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&bound.listener, &connections) => accepted,
            () = &mut shutdown => break,
        };
        match accepted {
            Ok((stream, permit)) => spawn(stream, permit, &router, &app, &graceful),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(bound);
    app.engine.drain();
    let finished = graceful.shutdown();
    tokio::pin!(finished);
    if tokio::time::timeout(grace, &mut finished).await.is_ok() {
        return;
    }
    // Streams that still run are told, and their connections then end by themselves.
    let ending = Arc::clone(&app);
    let _ = tokio::task::spawn_blocking(move || ending.engine.stop()).await;
    let _ = tokio::time::timeout(Duration::from_secs(1), finished).await;
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    // Never closed.
    let permit = Arc::clone(connections).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // Tokens are sent one by one; waiting to fill a packet would delay them.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

fn spawn(
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    router: &Router,
    app: &App,
    graceful: &GracefulShutdown,
) {
    let limits = &app.limits;
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_headers(limits.headers)
        .max_buf_size(limits.header_bytes.max(8192))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended early");
        }
        drop(permit);
    });
}
