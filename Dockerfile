# syntax=docker/dockerfile:1
# The versions of uv.lock, in an environment of their own; the image has no compiler, no package manager's cache and no root.
FROM python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84 AS build
RUN pip install --no-cache-dir uv==0.13.9
ENV UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT=/opt/icewright
WORKDIR /build
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-dev --all-extras --no-install-project
COPY icewright ./icewright
RUN --mount=type=cache,target=/root/.cache/uv \
    uv sync --frozen --no-dev --all-extras --no-editable

FROM python:3.11-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84
LABEL org.opencontainers.image.title="Icewright" \
      org.opencontainers.image.description="Keeps Apache Iceberg tables healthy by itself" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 icewright \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/icewright icewright \
    && install --directory --owner=10001 --group=10001 /etc/icewright /var/lib/icewright /var/cache/icewright
COPY --from=build /opt/icewright /opt/icewright
ENV PATH=/opt/icewright/bin:$PATH \
    HOME=/var/lib/icewright \
    XDG_CACHE_HOME=/var/cache \
    ICEWRIGHT_CONFIG=/etc/icewright/icewright.yaml
USER 10001:10001
WORKDIR /var/lib/icewright
VOLUME ["/var/lib/icewright", "/var/cache/icewright"]
EXPOSE 8765
# of the service; a worker answers nobody and is started with its health check off
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["icewright"]
CMD ["serve"]
