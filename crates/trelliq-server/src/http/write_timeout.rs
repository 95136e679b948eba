//! Connections whose other end stops reading.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail with [`io::ErrorKind::TimedOut`] once nothing could be written for
/// `limit`. Whoever reads slowly, but reads, is waited for.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    inner: S,
    limit: Duration,
    /// Runs from the first write in a row that had to wait.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncWrite + Unpin> WriteTimeout<S> {
    pub fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit, waiting: None }
    }

    fn write_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(result) = write(Pin::new(&mut self.inner), cx) {
            self.waiting = None;
            return Poll::Ready(result);
        }
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(waiting.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |inner, cx| inner.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |inner, cx| inner.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write_with(cx, |inner, cx| inner.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write_with(cx, |inner, cx| inner.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const LIMIT: Duration = Duration::from_millis(200);

    #[tokio::test]
    async fn a_reader_that_takes_nothing_is_given_up_and_a_slow_one_is_not() {
        let (mut reader, writer) = tokio::io::duplex(8);
        let mut writer = WriteTimeout::new(writer, LIMIT);
        let slow = tokio::spawn(async move {
            let mut all = Vec::new();
            for _ in 0..6 {
                // Together longer than the limit.
                tokio::time::sleep(LIMIT / 4).await;
                let mut piece = [0; 8];
                reader.read_exact(&mut piece).await.unwrap();
                all.extend(piece);
            }
            (all, reader)
        });
        let sent: Vec<u8> = (0..48).collect();
        writer.write_all(&sent).await.unwrap();
        let (all, _reader) = slow.await.unwrap();
        assert_eq!(all, sent);
        let error = writer.write_all(&sent).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
