# SPDX-License-Identifier: Apache-2.0
# docker build -t zq . && docker run --name zq -p 127.0.0.1:8888:8888 -v zq:/var/lib/zq zq
# Clients need a token: docker exec zq zq-server token create --project acme --store rocksdb:///var/lib/zq

FROM python:3.11-slim AS build
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

FROM python:3.11-slim
RUN useradd --system --uid 8888 --home-dir /var/lib/zq --shell /usr/sbin/nologin zq \
    && install --directory --owner=zq --group=zq --mode=0700 /var/lib/zq
COPY --from=build /opt/zq /opt/zq
ENV PATH=/opt/zq/bin:$PATH PYTHONUNBUFFERED=1 OS_DEFAULT__AUTH_STRATEGY=token
USER zq
WORKDIR /var/lib/zq
VOLUME /var/lib/zq
EXPOSE 8888
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8888/healthz', timeout=2)"]
# SIGTERM, docker's own, finishes what is in flight; give it time: docker stop --time 40.
CMD ["zq-server", "--bind", "0.0.0.0", "--store", "rocksdb:///var/lib/zq"]
