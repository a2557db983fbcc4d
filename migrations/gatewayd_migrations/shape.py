"""What the migrations make, by kind and name: digests of ``gatewayd.store.schema_check``.

Kept here, as ``HEAD`` is, so that a start imports no Alembic; ``gatewayd.store.schema_digests``
writes it again, and a test compares.
"""

from __future__ import annotations

SHAPE = {
    "index ix_batches_tenant": "7b1969cf70fd21d2d3f567982e5e1060",
    "index ix_files_tenant": "13f53cf719451959c2f7f834998850aa",
    "index ix_ledgers_answered_id": "37646d604dc50f66819d22fd267cc491",
    "index ix_ledgers_request_id": "cbbfd51779f4184c9189f92d50f02cfc",
    "index ix_ledgers_unix": "cf3cd503dfac82eefb1fdadeb70f723c",
    "index ix_overrides_section": "99e9feaca3810f0b5320147b497dcabc",
    "index ix_refusals_answered_id": "7c9e671f9d443dd01cbe4c630da48fa4",
    "index ix_refusals_request_id": "f640056a6d399c5b7193c1d17cc4ff48",
    "index ix_refusals_unix": "22d862de494675db21dff51923c75069",
    "index ix_responses_created_at": "f3b2f213ed7c694c3861721b0b4d9847",
    "index ix_responses_tenant": "5324b20777710cd38518cfae1f226e7a",
    "index ix_usage_created_at": "bd05fc03bb6704c97d67e4844b369bee",
    "index ix_usage_tenant_created_at": "aec491d4aa544e5c0834585fa4eb24c0",
    "table alembic_version": "3bd7e57b62cd3c5025dbc2b2285182cf",
    "table audit": "392ba5785141f4002a80d288ccd2a229",
    "table batch_results": "3b63fb8190f22eb914027b296bc0bbcc",
    "table batches": "f68534ce07cf7f3e287fdfe358d7b880",
    "table budgets": "5a3c5188ae083e09ba3f3d672aecaad7",
    "table files": "dcf3702928e260cef1ba373e2455a953",
    "table kept": "da5e0f242984369691d44f26511d9eb1",
    "table keys": "d933431e81768ec66da601f73809a565",
    "table ledgers": "e11d7f67488b03d13668be4ec35d96f2",
    "table overrides": "8975129d12c8be92c54fd616a2021982",
    "table prices": "16da4281ef9b812746356021be7aecb9",
    "table refusals": "c59feb02a94e854649ae22aee1dc43be",
    "table reservations": "984a48b42ffa20e21b2fd73d1ce05644",
    "table responses": "b8cd36086b8e0201ebe1cefc9210cd42",
    "table seal_state": "9fc84560c7541f2703363f44d00e6156",
    "table seals": "1799a2fedb42eef7c3c6f87aedc66081",
    "table tenants": "4b8fa3e41b2b48cf488f5bfd1007e428",
    "table usage": "258eff1579daf99bc3833444867c767f",
    "trigger kept_batch_results_delete": "20356ac68b48344b74ceb1959fbf9e45",
    "trigger kept_batch_results_insert": "74adca99050b9fd0b1053e601b6ab65c",
    "trigger kept_batch_results_update": "b12661ecd9e0063b1ec4f6da8c547793",
    "trigger kept_batches_delete": "1a10cb2de34760fc6999c5864d2d1b50",
    "trigger kept_batches_insert": "106f2b62c67c4f3cb78977afc7cdb024",
    "trigger kept_batches_results": "6bf2d462b2e526300123ff4f5e7d894a",
    "trigger kept_batches_update": "296a5fe2b91174dc69822c555ae16a2c",
    "trigger kept_files_delete": "695fd872ccddf780ce20ca3c8331da16",
    "trigger kept_files_insert": "31fbe159e779182fe3bcc00d9cc039c8",
    "trigger kept_files_update": "2e3efdb96920488a36499ac55ea4c92d",
    "trigger kept_responses_delete": "f32629e4e543c8c0e6ab1825a40442f1",
    "trigger kept_responses_insert": "4f65755a77cdb5bd9ed06ec69daa42fc",
    "trigger kept_responses_update": "ecad4b97623135de8f6cddf2c7e5ada2",
}
