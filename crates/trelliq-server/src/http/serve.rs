//! Connections, and how they end.

use super::write_timeout::WriteTimeout;
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
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A listener that clients can connect to, but that nothing answers on yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    pub address: SocketAddr,
}

/// What the system holds for a client that is slow to read, in bytes; systems that grow it by
/// themselves would hold megabytes for every connection.
const SEND_BUFFER: u32 = 64 << 10;

/// Connections that the system keeps before they are accepted.
const BACKLOG: u32 = 1024;

impl Bound {
    /// Errors when the address cannot be had.
    pub async fn new(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As `TcpListener::bind` does: elsewhere it would let others take the address too.
        #[cfg(unix)]
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it.
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(address)?;
        let listener = socket.listen(BACKLOG)?;
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
    // A connection that ends takes the bodies that are being sent with it, and these their requests.
    let stream = WriteTimeout::new(stream, limits.write_time);
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
