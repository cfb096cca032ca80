SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.attempts (
    attempt_key bigint NOT NULL,
    job_key integer NOT NULL,
    shard integer NOT NULL,
    epoch integer NOT NULL,
    owner character varying NOT NULL,
    node character varying,
    replica character varying,
    started_at double precision NOT NULL,
    ended_at double precision,
    cause character varying,
    detail text NOT NULL,
    done bigint DEFAULT '0'::bigint NOT NULL,
    failed bigint DEFAULT '0'::bigint NOT NULL,
    prompt_tokens bigint DEFAULT '0'::bigint NOT NULL,
    completion_tokens bigint DEFAULT '0'::bigint NOT NULL,
    lost_tokens bigint DEFAULT '0'::bigint NOT NULL
);
CREATE SEQUENCE public.attempts_attempt_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.attempts_attempt_key_seq OWNED BY public.attempts.attempt_key;
CREATE TABLE public.charges (
    job_key integer NOT NULL,
    budget character varying NOT NULL,
    scope character varying NOT NULL,
    event character varying NOT NULL,
    cause character varying NOT NULL,
    answered bigint NOT NULL,
    charged_at double precision NOT NULL
);
CREATE TABLE public.jobs (
    job_key integer NOT NULL,
    job_id character varying NOT NULL,
    state character varying NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    driver_owner character varying,
    driver_until double precision,
    cancel_requested boolean NOT NULL,
    reason text,
    total bigint,
    rejected bigint DEFAULT '0'::bigint NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    fingerprint jsonb NOT NULL,
    settings jsonb NOT NULL,
    summary jsonb NOT NULL,
    info jsonb NOT NULL,
    expires_at double precision
);
CREATE SEQUENCE public.jobs_job_key_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_job_key_seq OWNED BY public.jobs.job_key;
CREATE TABLE public.notices (
    notice_key bigint NOT NULL,
    job_key integer NOT NULL,
    node character varying NOT NULL,
    source character varying NOT NULL,
    action character varying NOT NULL,
    deadline double precision,
    seen_at double precision NOT NULL,
    kind character varying DEFAULT 'interruption'::character varying NOT NULL,
    event character varying DEFAULT ''::character varying NOT NULL
);
CREATE SEQUENCE public.notices_notice_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.notices_notice_key_seq OWNED BY public.notices.notice_key;
CREATE TABLE public.replicas (
    job_key integer NOT NULL,
    name character varying NOT NULL,
    lane integer NOT NULL,
    state character varying NOT NULL,
    node character varying,
    host character varying,
    slots integer NOT NULL,
    max_num_seqs integer DEFAULT 0 NOT NULL,
    reserved integer,
    changed_at double precision NOT NULL
);
CREATE TABLE public.results (
    job_key integer NOT NULL,
    idx bigint NOT NULL,
    shard integer NOT NULL,
    epoch integer NOT NULL,
    committed_at double precision NOT NULL,
    prompt_tokens integer NOT NULL,
    cached_tokens integer NOT NULL,
    completion_tokens integer NOT NULL,
    queue_seconds double precision NOT NULL,
    first_token_seconds double precision NOT NULL,
    total_seconds double precision NOT NULL,
    custom_id text,
    error_code text,
    error_message text,
    response text
);
CREATE TABLE public.shards (
    job_key integer NOT NULL,
    number integer NOT NULL,
    state character varying NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    owner character varying,
    lease_until double precision,
    parent integer,
    interruptions integer DEFAULT 0 NOT NULL,
    rows bigint NOT NULL,
    inherited bigint DEFAULT '0'::bigint NOT NULL,
    done bigint DEFAULT '0'::bigint NOT NULL,
    failed bigint DEFAULT '0'::bigint NOT NULL,
    prompt_tokens bigint DEFAULT '0'::bigint NOT NULL,
    cached_tokens bigint DEFAULT '0'::bigint NOT NULL,
    completion_tokens bigint DEFAULT '0'::bigint NOT NULL,
    first_index bigint NOT NULL,
    last_index bigint NOT NULL,
    "offset" bigint NOT NULL,
    length bigint NOT NULL,
    uri text NOT NULL,
    crashes integer DEFAULT 0 NOT NULL,
    replica character varying
);
CREATE TABLE public.spans (
    span_key bigint NOT NULL,
    job_key integer NOT NULL,
    node character varying NOT NULL,
    phase character varying NOT NULL,
    started double precision NOT NULL,
    seconds double precision NOT NULL,
    price double precision
);
CREATE SEQUENCE public.spans_span_key_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.spans_span_key_seq OWNED BY public.spans.span_key;
ALTER TABLE ONLY public.attempts ALTER COLUMN attempt_key SET DEFAULT nextval('public.attempts_attempt_key_seq'::regclass);
ALTER TABLE ONLY public.jobs ALTER COLUMN job_key SET DEFAULT nextval('public.jobs_job_key_seq'::regclass);
ALTER TABLE ONLY public.notices ALTER COLUMN notice_key SET DEFAULT nextval('public.notices_notice_key_seq'::regclass);
ALTER TABLE ONLY public.spans ALTER COLUMN span_key SET DEFAULT nextval('public.spans_span_key_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0002');
INSERT INTO public.attempts VALUES (1, 1, 0, 1, 'gone/1/1/worker', NULL, 'job/replica-0', 1795389432.58435, 1795389432.678979, 'DONE', '', 11, 0, 22, 44, 0);
INSERT INTO public.attempts VALUES (2, 1, 1, 1, 'gone/1/1/worker', NULL, 'job/replica-0', 1795389432.753395, NULL, NULL, '', 5, 0, 10, 20, 0);
INSERT INTO public.attempts VALUES (3, 1, 2, 1, 'gone/1/1/worker', NULL, 'job/replica-0', 1795389432.993926, 1795389433.254273, 'ENGINE_CRASH', 'the engine died', 3, 0, 6, 12, 0);
INSERT INTO public.attempts VALUES (4, 1, 5, 1, 'gone/1/1/worker', NULL, 'job/replica-0', 1795389433.287662, NULL, NULL, '', 1, 0, 2, 4, 0);
INSERT INTO public.jobs VALUES (1, 'job', 'in_progress', 1, 'gone/1/1/driver', 1795389491.797847, false, NULL, 48, 2, 1795389431.784641, 1795389432.466218, '{"input": "0b50bdd73cab8f12b440d9269cb1b4335626cd13f0f99f40579176a9a7005d6f", "model": "simulated:simulated:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "format": "1", "sampling": "e205479cab6195cd849ca327fd200f605824e1cb1c60544bb74875d7a9ff70c9", "template": "openai-batch"}', '{"model": "simulated", "engine": "simulated", "format": "jsonl", "output": "@FOLDER@/out", "recipe": {}, "replicas": null, "sampling": {"temperature": "0"}, "model_name": null, "skip_invalid": true, "engine_arguments": {"max_num_seqs": "4"}}', '{}', '{"rows": 48, "files": ["@FOLDER@/in.jsonl"], "kinds": ["chat"], "model_name": null, "spool_sha256": "2749ff000fc4978d4124db616663066e9f02e242891bbe3a59d4559b870ca70e"}', NULL);
INSERT INTO public.results VALUES (1, 5, -1, 0, 1795389432.307636, 0, 0, 0, 0, 0, 0, 'row-5', 'missing_body', '@FOLDER@/in.jsonl:6 [body]: the row has no body', NULL);
INSERT INTO public.results VALUES (1, 30, -1, 0, 1795389432.307636, 0, 0, 0, 0, 0, 0, 'row-30', 'missing_body', '@FOLDER@/in.jsonl:31 [body]: the row has no body', NULL);
INSERT INTO public.results VALUES (1, 0, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-0', NULL, NULL, '{"id":"sim-0","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"e5233882c4b0e2c3"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 1, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-1', NULL, NULL, '{"id":"sim-1","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"e4d3064af80f34b7"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 2, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-2', NULL, NULL, '{"id":"sim-2","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"ebd4803bae45988b"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 3, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-3', NULL, NULL, '{"id":"sim-3","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"7dff9fca1dd535b6"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 4, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-4', NULL, NULL, '{"id":"sim-4","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"c64bfb316d53ea13"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 6, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-6', NULL, NULL, '{"id":"sim-6","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"ea49c90d891e8aa7"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 7, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-7', NULL, NULL, '{"id":"sim-7","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"c4dcca135063869c"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 8, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-8', NULL, NULL, '{"id":"sim-8","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"79644d4fd8325486"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 9, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-9', NULL, NULL, '{"id":"sim-9","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"2a30af45db691f52"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 10, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-10', NULL, NULL, '{"id":"sim-10","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"588fecee8c7dcd6e"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 11, 0, 1, 1795389432.641219, 2, 0, 4, 0, 0, 0, 'row-11', NULL, NULL, '{"id":"sim-11","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"09a8341f258315c3"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 13, 1, 1, 1795389432.786539, 2, 0, 4, 0, 0, 0, 'row-13', NULL, NULL, '{"id":"sim-13","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"44380a6d20d95bf4"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 14, 1, 1, 1795389432.786539, 2, 0, 4, 0, 0, 0, 'row-14', NULL, NULL, '{"id":"sim-14","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"58a7e1a195d08b32"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 17, 1, 1, 1795389432.786539, 2, 0, 4, 0, 0, 0, 'row-17', NULL, NULL, '{"id":"sim-17","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"a4e19d229b054148"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 18, 1, 1, 1795389432.786539, 2, 0, 4, 0, 0, 0, 'row-18', NULL, NULL, '{"id":"sim-18","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"91649a56c566c849"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 23, 1, 1, 1795389432.786539, 2, 0, 4, 0, 0, 0, 'row-23', NULL, NULL, '{"id":"sim-23","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"1f8f903cb2f42164"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 25, 2, 1, 1795389433.150317, 2, 0, 4, 0, 0, 0, 'row-25', NULL, NULL, '{"id":"sim-25","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"d59d0df686984b19"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 32, 2, 1, 1795389433.150317, 2, 0, 4, 0, 0, 0, 'row-32', NULL, NULL, '{"id":"sim-32","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"6acf8174780d3fb4"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 35, 2, 1, 1795389433.150317, 2, 0, 4, 0, 0, 0, 'row-35', NULL, NULL, '{"id":"sim-35","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"480a70095bfde96f"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.results VALUES (1, 31, 5, 1, 1795389433.296235, 2, 0, 4, 0, 0, 0, 'row-31', NULL, NULL, '{"id":"sim-31","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"03609c253e8a9caa"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO public.shards VALUES (1, 3, 'pending', 0, NULL, NULL, NULL, 0, 12, 0, 0, 0, 0, 0, 0, 36, 48, 5070, 1800, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, NULL);
INSERT INTO public.shards VALUES (1, 0, 'done', 1, NULL, NULL, NULL, 0, 11, 0, 11, 0, 22, 0, 44, 0, 12, 0, 1615, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, NULL);
INSERT INTO public.shards VALUES (1, 1, 'leased', 1, 'gone/1/1/worker', 1795389522.783213, NULL, 0, 12, 0, 5, 0, 10, 0, 20, 12, 24, 1615, 1800, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, 'job/replica-0');
INSERT INTO public.shards VALUES (1, 2, 'split', 1, NULL, NULL, NULL, 0, 11, 0, 3, 0, 6, 0, 12, 24, 36, 3415, 1655, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, NULL);
INSERT INTO public.shards VALUES (1, 4, 'pending', 0, NULL, NULL, 2, 0, 4, 1, 0, 0, 0, 0, 0, 24, 28, 3415, 600, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, NULL);
INSERT INTO public.shards VALUES (1, 6, 'pending', 0, NULL, NULL, 2, 0, 2, 1, 0, 0, 0, 0, 0, 34, 36, 4770, 300, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, NULL);
INSERT INTO public.shards VALUES (1, 5, 'leased', 1, 'gone/1/1/worker', 1795389523.293439, 2, 0, 5, 1, 1, 0, 2, 0, 4, 28, 34, 4015, 755, '@FOLDER@/out/.dray/job/requests-1.jsonl', 0, 'job/replica-0');
SELECT pg_catalog.setval('public.attempts_attempt_key_seq', 4, true);
SELECT pg_catalog.setval('public.jobs_job_key_seq', 1, true);
SELECT pg_catalog.setval('public.notices_notice_key_seq', 1, false);
SELECT pg_catalog.setval('public.spans_span_key_seq', 1, false);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT pk_attempts PRIMARY KEY (attempt_key);
ALTER TABLE ONLY public.charges
    ADD CONSTRAINT pk_charges PRIMARY KEY (job_key, budget, scope, event);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (job_key);
ALTER TABLE ONLY public.notices
    ADD CONSTRAINT pk_notices PRIMARY KEY (notice_key);
ALTER TABLE ONLY public.replicas
    ADD CONSTRAINT pk_replicas PRIMARY KEY (job_key, name);
ALTER TABLE ONLY public.results
    ADD CONSTRAINT pk_results PRIMARY KEY (job_key, idx);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT pk_shards PRIMARY KEY (job_key, number);
ALTER TABLE ONLY public.spans
    ADD CONSTRAINT pk_spans PRIMARY KEY (span_key);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_job_id UNIQUE (job_id);
CREATE INDEX ix_notices_job_key ON public.notices USING btree (job_key);
CREATE UNIQUE INDEX uq_attempts_job_key_shard_epoch ON public.attempts USING btree (job_key, shard, epoch);
CREATE UNIQUE INDEX uq_spans_job_key_node_phase_started ON public.spans USING btree (job_key, node, phase, started);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT fk_attempts_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
ALTER TABLE ONLY public.charges
    ADD CONSTRAINT fk_charges_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
ALTER TABLE ONLY public.notices
    ADD CONSTRAINT fk_notices_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
ALTER TABLE ONLY public.replicas
    ADD CONSTRAINT fk_replicas_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
ALTER TABLE ONLY public.shards
    ADD CONSTRAINT fk_shards_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
ALTER TABLE ONLY public.spans
    ADD CONSTRAINT fk_spans_job_key FOREIGN KEY (job_key) REFERENCES public.jobs(job_key);
