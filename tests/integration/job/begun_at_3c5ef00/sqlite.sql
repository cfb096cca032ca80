BEGIN TRANSACTION;
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num));
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE attempts (
	attempt_key INTEGER NOT NULL, 
	job_key INTEGER NOT NULL, 
	shard INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	owner VARCHAR NOT NULL, 
	node VARCHAR, 
	replica VARCHAR, 
	started_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	cause VARCHAR, 
	detail TEXT NOT NULL, 
	done BIGINT DEFAULT '0' NOT NULL, 
	failed BIGINT DEFAULT '0' NOT NULL, 
	prompt_tokens BIGINT DEFAULT '0' NOT NULL, 
	completion_tokens BIGINT DEFAULT '0' NOT NULL, 
	lost_tokens BIGINT DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_attempts PRIMARY KEY (attempt_key), 
	CONSTRAINT fk_attempts_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
INSERT INTO "attempts" VALUES(1,1,0,1,'gone/1/1/worker',NULL,'job/replica-0',1.79538942439401435851e+09,1.79538942467500257493e+09,'DONE','',11,0,22,44,0);
INSERT INTO "attempts" VALUES(2,1,1,1,'gone/1/1/worker',NULL,'job/replica-0',1.79538942473398447034e+09,NULL,NULL,'',5,0,10,20,0);
INSERT INTO "attempts" VALUES(3,1,2,1,'gone/1/1/worker',NULL,'job/replica-0',1.79538942478898310662e+09,1.79538942481799125667e+09,'ENGINE_CRASH','the engine died',3,0,6,12,0);
INSERT INTO "attempts" VALUES(4,1,5,1,'gone/1/1/worker',NULL,'job/replica-0',1.79538942483601570128e+09,NULL,NULL,'',1,0,2,4,0);
CREATE TABLE charges (
	job_key INTEGER NOT NULL, 
	budget VARCHAR NOT NULL, 
	scope VARCHAR NOT NULL, 
	event VARCHAR NOT NULL, 
	cause VARCHAR NOT NULL, 
	answered BIGINT NOT NULL, 
	charged_at DOUBLE NOT NULL, 
	CONSTRAINT pk_charges PRIMARY KEY (job_key, budget, scope, event), 
	CONSTRAINT fk_charges_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
CREATE TABLE jobs (
	job_key INTEGER NOT NULL, 
	job_id VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	epoch INTEGER DEFAULT '0' NOT NULL, 
	driver_owner VARCHAR, 
	driver_until DOUBLE, 
	cancel_requested BOOLEAN NOT NULL, 
	reason TEXT, 
	total BIGINT, 
	rejected BIGINT DEFAULT '0' NOT NULL, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	fingerprint JSON NOT NULL, 
	settings JSON NOT NULL, 
	summary JSON NOT NULL, 
	info JSON NOT NULL, 
	expires_at DOUBLE, 
	CONSTRAINT pk_jobs PRIMARY KEY (job_key), 
	CONSTRAINT uq_jobs_job_id UNIQUE (job_id)
);
INSERT INTO "jobs" VALUES(1,'job','in_progress',1,'gone/1/1/driver',1.79538948343401169776e+09,0,NULL,48,2,1795389423.25598,1.79538942424700260157e+09,'{"input": "0b50bdd73cab8f12b440d9269cb1b4335626cd13f0f99f40579176a9a7005d6f", "model": "simulated:simulated:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "sampling": "e205479cab6195cd849ca327fd200f605824e1cb1c60544bb74875d7a9ff70c9", "template": "openai-batch", "format": "1"}','{"model": "simulated", "engine": "simulated", "output": "@FOLDER@/out", "format": "jsonl", "replicas": null, "engine_arguments": {"max_num_seqs": "4"}, "sampling": {"temperature": "0"}, "model_name": null, "skip_invalid": true, "recipe": {}}','{}','{"kinds": ["chat"], "model_name": null, "rows": 48, "spool_sha256": "2749ff000fc4978d4124db616663066e9f02e242891bbe3a59d4559b870ca70e", "files": ["@FOLDER@/in.jsonl"]}',NULL);
CREATE TABLE notices (
	notice_key INTEGER NOT NULL, 
	job_key INTEGER NOT NULL, 
	node VARCHAR NOT NULL, 
	source VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	deadline DOUBLE, 
	seen_at DOUBLE NOT NULL, 
	kind VARCHAR DEFAULT 'interruption' NOT NULL, 
	event VARCHAR DEFAULT '' NOT NULL, 
	CONSTRAINT pk_notices PRIMARY KEY (notice_key), 
	CONSTRAINT fk_notices_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
CREATE TABLE replicas (
	job_key INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	lane INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	node VARCHAR, 
	host VARCHAR, 
	slots INTEGER NOT NULL, 
	max_num_seqs INTEGER DEFAULT '0' NOT NULL, 
	reserved INTEGER, 
	changed_at DOUBLE NOT NULL, 
	CONSTRAINT pk_replicas PRIMARY KEY (job_key, name), 
	CONSTRAINT fk_replicas_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
CREATE TABLE results (
	job_key INTEGER NOT NULL, 
	idx BIGINT NOT NULL, 
	shard INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	committed_at DOUBLE NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	cached_tokens INTEGER NOT NULL, 
	completion_tokens INTEGER NOT NULL, 
	queue_seconds DOUBLE NOT NULL, 
	first_token_seconds DOUBLE NOT NULL, 
	total_seconds DOUBLE NOT NULL, 
	custom_id TEXT, 
	error_code TEXT, 
	error_message TEXT, 
	response TEXT, 
	CONSTRAINT pk_results PRIMARY KEY (job_key, idx)
);
INSERT INTO "results" VALUES(1,5,-1,0,1.7953894241959869861e+09,0,0,0,0.0,0.0,0.0,'row-5','missing_body','@FOLDER@/in.jsonl:6 [body]: the row has no body',NULL);
INSERT INTO "results" VALUES(1,30,-1,0,1.7953894241959869861e+09,0,0,0,0.0,0.0,0.0,'row-30','missing_body','@FOLDER@/in.jsonl:31 [body]: the row has no body',NULL);
INSERT INTO "results" VALUES(1,0,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-0',NULL,NULL,'{"id":"sim-0","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"e5233882c4b0e2c3"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,1,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-1',NULL,NULL,'{"id":"sim-1","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"e4d3064af80f34b7"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,2,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-2',NULL,NULL,'{"id":"sim-2","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"ebd4803bae45988b"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,3,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-3',NULL,NULL,'{"id":"sim-3","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"7dff9fca1dd535b6"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,4,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-4',NULL,NULL,'{"id":"sim-4","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"c64bfb316d53ea13"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,6,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-6',NULL,NULL,'{"id":"sim-6","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"ea49c90d891e8aa7"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,7,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-7',NULL,NULL,'{"id":"sim-7","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"c4dcca135063869c"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,8,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-8',NULL,NULL,'{"id":"sim-8","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"79644d4fd8325486"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,9,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-9',NULL,NULL,'{"id":"sim-9","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"2a30af45db691f52"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,10,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-10',NULL,NULL,'{"id":"sim-10","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"588fecee8c7dcd6e"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,11,0,1,1.79538942447600960734e+09,2,0,4,0.0,0.0,0.0,'row-11',NULL,NULL,'{"id":"sim-11","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"09a8341f258315c3"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,13,1,1,1.7953894247530148029e+09,2,0,4,0.0,0.0,0.0,'row-13',NULL,NULL,'{"id":"sim-13","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"44380a6d20d95bf4"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,14,1,1,1.7953894247530148029e+09,2,0,4,0.0,0.0,0.0,'row-14',NULL,NULL,'{"id":"sim-14","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"58a7e1a195d08b32"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,17,1,1,1.7953894247530148029e+09,2,0,4,0.0,0.0,0.0,'row-17',NULL,NULL,'{"id":"sim-17","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"a4e19d229b054148"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,18,1,1,1.7953894247530148029e+09,2,0,4,0.0,0.0,0.0,'row-18',NULL,NULL,'{"id":"sim-18","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"91649a56c566c849"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,23,1,1,1.7953894247530148029e+09,2,0,4,0.0,0.0,0.0,'row-23',NULL,NULL,'{"id":"sim-23","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"1f8f903cb2f42164"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,25,2,1,1.79538942480201864238e+09,2,0,4,0.0,0.0,0.0,'row-25',NULL,NULL,'{"id":"sim-25","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"d59d0df686984b19"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,32,2,1,1.79538942480201864238e+09,2,0,4,0.0,0.0,0.0,'row-32',NULL,NULL,'{"id":"sim-32","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"6acf8174780d3fb4"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,35,2,1,1.79538942480201864238e+09,2,0,4,0.0,0.0,0.0,'row-35',NULL,NULL,'{"id":"sim-35","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"480a70095bfde96f"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
INSERT INTO "results" VALUES(1,31,5,1,1.7953894248459935189e+09,2,0,4,0.0,0.0,0.0,'row-31',NULL,NULL,'{"id":"sim-31","object":"chat.completion","created":0,"model":"simulated","choices":[{"index":0,"message":{"role":"assistant","content":"03609c253e8a9caa"},"finish_reason":"length"}],"usage":{"prompt_tokens":2,"total_tokens":6,"completion_tokens":4}}');
CREATE TABLE shards (
	job_key INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	epoch INTEGER DEFAULT '0' NOT NULL, 
	owner VARCHAR, 
	lease_until DOUBLE, 
	parent INTEGER, 
	interruptions INTEGER DEFAULT '0' NOT NULL, 
	rows BIGINT NOT NULL, 
	inherited BIGINT DEFAULT '0' NOT NULL, 
	done BIGINT DEFAULT '0' NOT NULL, 
	failed BIGINT DEFAULT '0' NOT NULL, 
	prompt_tokens BIGINT DEFAULT '0' NOT NULL, 
	cached_tokens BIGINT DEFAULT '0' NOT NULL, 
	completion_tokens BIGINT DEFAULT '0' NOT NULL, 
	first_index BIGINT NOT NULL, 
	last_index BIGINT NOT NULL, 
	"offset" BIGINT NOT NULL, 
	length BIGINT NOT NULL, 
	uri TEXT NOT NULL, 
	crashes INTEGER DEFAULT '0' NOT NULL, 
	replica VARCHAR, 
	CONSTRAINT pk_shards PRIMARY KEY (job_key, number), 
	CONSTRAINT fk_shards_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
INSERT INTO "shards" VALUES(1,0,'done',1,NULL,NULL,NULL,0,11,0,11,0,22,0,44,0,12,0,1615,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,NULL);
INSERT INTO "shards" VALUES(1,1,'leased',1,'gone/1/1/worker',1.79538951475301480293e+09,NULL,0,12,0,5,0,10,0,20,12,24,1615,1800,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,'job/replica-0');
INSERT INTO "shards" VALUES(1,2,'split',1,NULL,NULL,NULL,0,11,0,3,0,6,0,12,24,36,3415,1655,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,NULL);
INSERT INTO "shards" VALUES(1,3,'pending',0,NULL,NULL,NULL,0,12,0,0,0,0,0,0,36,48,5070,1800,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,NULL);
INSERT INTO "shards" VALUES(1,4,'pending',0,NULL,NULL,2,0,4,1,0,0,0,0,0,24,28,3415,600,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,NULL);
INSERT INTO "shards" VALUES(1,5,'leased',1,'gone/1/1/worker',1.7953895148449876308e+09,2,0,5,1,1,0,2,0,4,28,34,4015,755,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,'job/replica-0');
INSERT INTO "shards" VALUES(1,6,'pending',0,NULL,NULL,2,0,2,1,0,0,0,0,0,34,36,4770,300,'@FOLDER@/out/.dray/job/requests-1.jsonl',0,NULL);
CREATE TABLE spans (
	span_key INTEGER NOT NULL, 
	job_key INTEGER NOT NULL, 
	node VARCHAR NOT NULL, 
	phase VARCHAR NOT NULL, 
	started DOUBLE NOT NULL, 
	seconds DOUBLE NOT NULL, 
	price DOUBLE, 
	CONSTRAINT pk_spans PRIMARY KEY (span_key), 
	CONSTRAINT fk_spans_job_key FOREIGN KEY(job_key) REFERENCES jobs (job_key)
);
CREATE UNIQUE INDEX uq_attempts_job_key_shard_epoch ON attempts (job_key, shard, epoch);
CREATE INDEX ix_notices_job_key ON notices (job_key);
CREATE UNIQUE INDEX uq_spans_job_key_node_phase_started ON spans (job_key, node, phase, started);
COMMIT;
