# SPDX-License-Identifier: Apache-2.0
# docker build -t zq . && docker run --name zq -p 127.0.0.1:8888:8888 -v zq:/var/lib/zq zq
# Clients need a token: docker exec zq zq-server token create --project acme --store rocksdb:///var/lib/zq
#
# The base image has no digest by default, because a fixed image never gets the distribution's security fixes. A tag can
# be moved. For builds that can be repeated, name the base image by its digest, which docker pull prints:
# docker build --build-arg PYTHON_IMAGE=python:3.11-slim@sha256:... -t zq .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
# The compiler builds gunicorn's C parser and stays behind in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/zq
WORKDIR /src
# Exactly the packages that were tested, by their hashes; the first lines of the file say how it is made anew.
COPY etc/requirements.lock ./
RUN /opt/zq/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock
COPY setup.cfg pyproject.toml README.md LICENSE ./
COPY zq zq
RUN /opt/zq/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation .

FROM ${PYTHON_IMAGE}
ARG REVISION=
# The label org.opencontainers.image.source is missing, because the repository has no public address yet.
LABEL org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.title="zq" \
    org.opencontainers.image.description="Multi-tenant queue service with OpenStack Zaqar's v2 wire contract" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 8888 --home-dir /var/lib/zq --shell /usr/sbin/nologin zq \
    && install --directory --owner=zq --group=zq --mode=0700 /var/lib/zq
COPY --from=build /opt/zq /opt/zq
ENV PATH=/opt/zq/bin:$PATH PYTHONUNBUFFERED=1 OS_DEFAULT__AUTH_STRATEGY=token OS_PROBES__BIND=127.0.0.1:8887
USER zq
WORKDIR /var/lib/zq
VOLUME /var/lib/zq
EXPOSE 8888
# The probes have an address of their own, without TLS, so that [server] tls_cert and tls_client_ca change nothing here.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request as web; web.urlopen(f'http://{os.environ[\"OS_PROBES__BIND\"]}/healthz')"]
# SIGTERM, docker's own, finishes what is in flight; give it time: docker stop --time 40.
CMD ["zq-server", "--bind", "0.0.0.0", "--store", "rocksdb:///var/lib/zq"]
